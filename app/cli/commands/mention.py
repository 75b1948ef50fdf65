"""`orion doctor --mention CHANNEL`: a person's mention, followed from Slack to its answer, by the records of the Orion that runs."""

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from app.cli.commands.doctor import Finding
from app.cli.commands.probes import TryError, call_slack
from app.cli.commands.runs import open_records
from app.runs.model import SENT, Run, RunState
from app.settings.settings import Settings
from app.store.engine import UnreadableStoreError
from app.store.runs import SqlRunStore

HEARD_WITHIN_S: Final = 180.0
"""For a person to change to Slack and write."""
ANSWERED_WITHIN_S: Final = 900.0
POLL_S: Final = 0.25
RECENT: Final = 50
PART: Final = "mention"


async def follow_mention(
    settings: Settings,
    channel: str,
    *,
    tell: Callable[[str], None],
    heard_within_s: float = HEARD_WITHIN_S,
) -> Finding:
    """Asks whoever looks at the terminal for a mention in a channel (its id or name), and follows it.

    `tell`: what to do now, line by line.
    """
    try:
        channel_id, name = await _find(settings, channel)
        async with open_records(settings) as store:
            began = datetime.now(UTC)
            tell(f"write in #{name} now: @Orion hello")
            run = await _wait_for(store, channel_id, began, within_s=heard_within_s)
            tell(f"heard: {run.id}")
            run = await _follow(store, run)
    except (TryError, UnreadableStoreError, OSError) as exc:
        fix = getattr(exc, "fix", "see the parts above, and `orion logs`")
        return Finding(part=PART, is_ok=False, detail=str(exc), fix=fix)
    if run.state is not RunState.SUCCEEDED or run.delivery != SENT:
        code = run.result.error_code or run.state
        told = f"{run.id} ended with {code}; its thread was told: {run.delivery or 'no'}"
        return Finding(part=PART, is_ok=False, detail=told, fix=f"see `orion runs show {run.id}`")
    return Finding(part=PART, is_ok=True, detail=_story(run, name))


async def _find(settings: Settings, channel: str) -> tuple[str, str]:
    """Returns a channel's id and name. Raises: TryError."""
    bot = settings.slack.bot_token
    wanted = channel.removeprefix("#")
    if re.fullmatch(r"[CG][A-Z0-9]{2,20}", wanted):
        told = await call_slack(settings, "conversations.info", bot, channel=wanted)
        found = dict(told.get("channel") or {})
    else:
        query = {"types": "public_channel,private_channel", "limit": 200, "exclude_archived": True}
        told = await call_slack(settings, "users.conversations", bot, **query)
        named = (one for one in told.get("channels") or () if one.get("name") == wanted)
        found = {"is_member": True, **next(named, {})}
    if not found.get("id") or not found.get("is_member"):
        raise TryError(f"Orion is no member of {channel}: invite it there, or name another")
    return str(found["id"]), str(found.get("name") or found["id"])


async def _wait_for(
    store: SqlRunStore, channel_id: str, began: datetime, *, within_s: float
) -> Run:
    """Returns the first run of that channel that is accepted from now on. Raises: TryError: there is none in time."""
    try:
        async with asyncio.timeout(within_s):
            while True:
                for run in reversed(await store.recent(limit=RECENT)):
                    if run.request.channel == channel_id and run.created_at >= began:
                        return run
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise TryError(
            f"no mention was heard within {within_s:.0f} s: is `orion serve` running, with this database, and is the app sent app_mention?"
        ) from None


async def _follow(store: SqlRunStore, run: Run) -> Run:
    """Returns the run when it is over. Raises: TryError: it is not, in time."""
    try:
        async with asyncio.timeout(ANSWERED_WITHIN_S):
            while True:
                found = await store.get(run.id)
                if found is not None and found.state.is_final:
                    return found
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise TryError(f"{run.id} has not ended within {ANSWERED_WITHIN_S:.0f} s") from None


def _story(run: Run, name: str) -> str:
    """Returns how long each part took, from the message's own time on."""
    asked_at = run.request.asked_at

    def after(at: datetime | None) -> str:
        return "?" if at is None else f"{max(0.0, (at - asked_at).total_seconds()):.1f} s"

    return (
        f"in #{name}: heard after {after(run.created_at)}, a message stood after {after(run.placed_at)}, "
        f"{run.agent} began after {after(run.started_at)}, answered after {after(run.ended_at)} ({run.id})"
    )

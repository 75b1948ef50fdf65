"""What a person finds where Orion is at home in Slack: the home tab, suggested prompts, and once a welcome.

All of it in the background, after the acknowledgement; each off for good after a refusal that is about the app.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from app.aio import TaskGroup
from app.approvals.records import Approval
from app.log import get_logger
from app.runs.policy import may_stop
from app.runs.ports import BUTTON
from app.slack.actions import KEYS_ACTION
from app.slack.api import SlackApi, SlackFault, SlackLeaseLost, SlackRateLimit, SlackRefusal
from app.slack.approval_card import render_approval
from app.slack.blocks import Block
from app.slack.fields import object_of, text_of
from app.slack.modals import plain
from app.slack.overview import Overviews, budget_text, deployment_text
from app.slack.signature import is_id

REDRAWN_AFTER_S: Final = 5.0
"""Between two drawings of one tab for one person; whoever looks sooner sees the next one then."""
MAX_DRAWINGS: Final = 3
"""For one opening, where Slack's limits refuse them."""
BACKGROUND_TIMEOUT_S: Final = 10.0
SHOWN_WAITING: Final = 10
"""Four or five blocks each. Source: Slack Block Kit, a home tab has 100 blocks, read 2026-11."""
MAX_PEOPLE: Final = 10_000
"""Of whom it is remembered when they looked last; then all are forgotten."""
_MAX_SECTION_CHARS: Final = 2_900
"""Source: Slack Block Kit, section text, 3,000 characters, read 2026-11."""
_PASSING_REFUSALS: Final = frozenset(
    {"channel_not_found", "user_not_found", "hash_conflict", "is_archived", "not_in_channel"}
)
"""About the person or the place, not about the app. Source: errors of the methods' pages, read 2026-11."""
_NOT_SAID: Final = (SlackRateLimit, SlackRefusal, SlackLeaseLost)
"""Faults after which for sure nothing stands in Slack."""
PROMPTS: Final[Sequence[tuple[str, str]]] = (
    ("What can you do?", "What can you do for me here, and with which tools?"),
    (
        "Run something",
        "Write a small script that shows the disk usage of your sandbox, and run it.",
    ),
    ("Settings", "settings"),
)
"""At most four. Source: Slack Web API, assistant.threads.setSuggestedPrompts, read 2026-11."""
WELCOME: Final = """\
Hello! I am Orion: I work on what you ask with AI agents, each in an isolated sandbox.
• Write to me here, or mention me in a channel; I answer in the thread, and know what was said in it.
• Send files, pictures and forwarded messages along; what I leave out, I name.
• Stop me with the Stop button, with :x: on my thinking message, or by writing `stop`.
• `/orion help` lists what else there is; *Ask Orion about this* is in the menu of every message.
I say this once."""
NOT_FOR_YOU: Final = (
    "You are not on the list of people who may use Orion. Please ask the operator for access."
)
_PUBLISH: Final = "views.publish"
_log = get_logger(__name__)


class WelcomeStore(Protocol):
    """Remembers who was welcomed, by a team's id and a person's; durable when it returns, one answer for all processes."""

    async def claim(self, team: str, person: str) -> bool:
        """Whether the person is to be welcomed, by whoever is told so first; never again."""
        ...

    async def release(self, team: str, person: str) -> None:
        """Takes a claim back: for sure nothing was said."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opening:
    team: str
    user: str
    channel: str
    tab: str
    drawings: int = 0
    """That Slack's limits have refused."""


class AppHome:
    """Hears when somebody opens Orion."""

    def __init__(
        self,
        api: SlackApi,
        *,
        group: TaskGroup,
        overviews: Overviews,
        welcomes: WelcomeStore,
        takes_keys: bool,
        timeout_s: float = BACKGROUND_TIMEOUT_S,
    ) -> None:
        """`group`: in which it works; `close` comes before its end, which may wait `timeout_s` for it."""
        self._api = api
        self._group = group
        self._overviews = overviews
        self._welcomes = welcomes
        self._takes_keys = takes_keys
        self._timeout_s = timeout_s
        self._drawn: dict[tuple[str, str], float] = {}
        """When each person's tab, by its name, was drawn last, or will be, on the loop's clock."""
        self._off: set[str] = set()
        """Methods that Slack has refused this app."""
        self._welcomed: set[str] = set()
        """Whom the database need not be asked about again."""
        self._closed = asyncio.Event()

    def close(self) -> None:
        """Begins nothing more; what is on its way goes on, for so long as it may."""
        self._closed.set()

    def opened(self, body: Mapping[str, Any]) -> None:
        """Takes an `app_home_opened` event, which Slack sends at every opening; returns at once."""
        event = object_of(body, "event")
        identity = self._overviews.identity()
        opening = _Opening(
            team=identity.team_id if identity else text_of(body, "team_id"),
            user=text_of(event, "user"),
            channel=text_of(event, "channel"),
            tab=text_of(event, "tab"),
        )
        if self._closed.is_set() or not (is_id(opening.team) and is_id(opening.user)):
            return
        may_ask = may_stop(opening.user, self._overviews.policy)
        if may_ask and opening.user not in self._welcomed and is_id(opening.channel):
            self._begin(self._welcome(opening))
        if opening.tab == "home" or (opening.tab == "messages" and is_id(opening.channel)):
            self._plan(opening)

    def _plan(self, opening: _Opening) -> None:
        now_s, key = asyncio.get_running_loop().time(), (opening.user, opening.tab)
        drawn_s = self._drawn.get(key, float("-inf"))
        if drawn_s > now_s:
            return
        if len(self._drawn) >= MAX_PEOPLE:
            self._drawn.clear()
        line_s = self._api.limits.line_s(_PUBLISH) if opening.tab == "home" else 0.0
        self._drawn[key] = max(now_s + line_s, drawn_s + REDRAWN_AFTER_S)
        drawing = self._draw_later(opening, after_s=self._drawn[key] - now_s)
        self._group.create_task(drawing, name="slack-home")

    async def _draw_later(self, opening: _Opening, *, after_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(after_s):
                await self._closed.wait()
            return
        is_home = opening.tab == "home"
        await self._bounded(self._draw(opening) if is_home else self._suggest(opening))

    def _begin(self, work: Awaitable[None]) -> None:
        self._group.create_task(self._bounded(work), name="slack-home")

    async def _bounded(self, work: Awaitable[None]) -> None:
        """Lets nothing that fails here end anything else."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await work
        except Exception as exc:  # noqa: BLE001 - a sick database must not end what else goes on in the group
            _log.warning("slack.home_failed", error=type(exc).__name__)

    async def _call(self, method: str, arguments: Mapping[str, Any]) -> SlackFault | None:
        """Makes one attempt, unless Slack has refused this app the method; returns what came between."""
        if method in self._off:
            return None
        try:
            await self._api.once(method, arguments)
        except SlackRefusal as exc:
            if exc.word not in _PASSING_REFUSALS and method not in self._off:
                self._off.add(method)
                if exc.word != "missing_scope":  # told at the start, by the scope
                    _log.warning("slack.feature_off", method=method, error=exc.word)
            return exc
        except SlackFault as exc:
            _log.info("slack.update_failed", operation=method, error=exc.word)
            return exc
        return None

    async def _draw(self, opening: _Opening) -> None:
        if _PUBLISH in self._off:
            return
        view = {"type": "home", "blocks": await self._blocks(opening)}
        fault = await self._call(_PUBLISH, {"user_id": opening.user, "view": view})
        if fault is not None:
            self._drawn.pop((opening.user, opening.tab), None)
        again = replace(opening, drawings=opening.drawings + 1)
        if isinstance(fault, SlackRateLimit) and again.drawings < MAX_DRAWINGS:
            self._plan(again)  # what is on record by then

    async def _suggest(self, opening: _Opening) -> None:
        # With a thread_ts it fails in agent_view. Source: Slack Web API, assistant.threads.setSuggestedPrompts, read 2026-11.
        prompts = [{"title": title, "message": message} for title, message in PROMPTS]
        await self._call(
            "assistant.threads.setSuggestedPrompts",
            {"channel_id": opening.channel, "title": "Ask me, for example", "prompts": prompts},
        )

    async def _welcome(self, opening: _Opening) -> None:
        """Welcomes a person once: claimed before it is said, so that a crash in between loses it rather than says it twice."""
        if "chat.postMessage" in self._off:
            return
        is_new = await self._welcomes.claim(opening.team, opening.user)
        if len(self._welcomed) >= MAX_PEOPLE:
            self._welcomed.clear()
        self._welcomed.add(opening.user)
        if not is_new:
            return
        fault = await self._call("chat.postMessage", {"channel": opening.channel, "text": WELCOME})
        if isinstance(fault, _NOT_SAID):
            self._welcomed.discard(opening.user)
            await self._welcomes.release(opening.team, opening.user)

    def _waiting(self, waiting: Sequence[Approval]) -> Sequence[Block]:
        """Returns what waits for the person's yes, with its buttons; nothing where nothing does."""
        if not waiting:
            return ()
        blocks: list[Block] = [{"type": "header", "text": plain("Waiting for an answer")}]
        identity = self._overviews.identity()
        for approval in waiting[:SHOWN_WAITING]:
            blocks += render_approval(approval).blocks
            if identity is not None and approval.card_ts:
                address = identity.link(
                    approval.channel, approval.card_ts, thread_ts=approval.thread_ts
                )
                text = f"<{address}|In its thread>"
                blocks.append({"type": "context", "elements": [{"type": "mrkdwn", "text": text}]})
        if (left := len(waiting) - SHOWN_WAITING) > 0:
            more = {"type": "mrkdwn", "text": f"and {left} more, in their threads"}
            blocks.append({"type": "context", "elements": [more]})
        return blocks

    async def _blocks(self, opening: _Opening) -> Sequence[Block]:
        overviews = self._overviews
        if not may_stop(opening.user, overviews.policy):
            return _part("Orion", NOT_FOR_YOU)
        overview = await overviews.of(opening.team, opening.user)
        blocks = [
            *self._waiting(overview.waiting),
            *_part("Your runs", overviews.runs_text(overview.entries)),
            *_part("Your defaults", overviews.choice_text(overview.choice)),
            *_part("Your budget", budget_text(overview.budget)),
        ]
        if self._takes_keys:
            button = {"type": "button", "action_id": KEYS_ACTION, "text": plain(BUTTON)}
            blocks.append({"type": "actions", "elements": [button]})
        if overview.deployment is not None:
            text = deployment_text(
                overview.deployment, overviews.policy, page=overviews.operators_page
            )
            blocks += _part("How it goes, for operators", text)
        return blocks


def _part(title: str, text: str) -> Sequence[Block]:
    """Returns a heading and what stands below it, cut after a whole line where it is too long."""
    while len(text) > _MAX_SECTION_CHARS:
        text = text.rpartition("\n")[0] or text[:_MAX_SECTION_CHARS]
    return (
        {"type": "header", "text": plain(title)},
        {"type": "section", "text": {"type": "mrkdwn", "text": text}},
    )

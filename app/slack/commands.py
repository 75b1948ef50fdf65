"""The slash command `/orion`: answered to who asks alone, from the store, within the acknowledgement.

What changes something goes the same way as its message: settings by `answer_without_agent`, stops by `Intake`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from app.accounts.links import AccountLinks
from app.errors import ErrorCode
from app.log import get_logger
from app.runs.commands import answer_without_agent
from app.runs.intake import Intake
from app.runs.model import Run
from app.runs.options import SANDBOX_WORDS, unknown_word
from app.runs.policy import find_refusal
from app.runs.request import RunRequest, Surface, run_id_for
from app.runs.selection import channel_change
from app.slack.blocks import as_sentence, failure_text
from app.slack.fields import text_of
from app.slack.manifest import COMMAND, COMMAND_HINT
from app.slack.markdown import escape
from app.slack.overview import Overviews, budget_text
from app.slack.signature import is_id

ANSWER_TIMEOUT_S: Final = 2.0
"""Before the acknowledgement, which Slack waits 3 s for. Source: Slack, slash commands, read 2026-11."""
MAX_ANSWER_CHARS: Final = 3_500
SHOWN_CHARS: Final = 40
"""Of what was not understood."""
LINKING: Final = ("link", "unlink")
NOT_NOW: Final = "I can't look that up right now. Please try again in a moment."
NO_LINKS: Final = "Accounts cannot be linked here: the operator has set up no GitHub App for it, and no MCP server."
ASK: Final = "Mention me in a channel, or write to me, to ask something."
HELP: Final = f"""\
`{COMMAND} {COMMAND_HINT}`
• `status`: what of yours goes on or waits, and how busy it is
• `stop`: stops all that you asked in this channel and that still goes on
• `runs`: your latest runs, with links
• `settings`: what a message of yours would get; `settings agent=… model=…` keeps yours, `settings reset` forgets them
• `agents`, `usage`: who can answer here, and what it has cost today
• `link`, `unlink`: your account at GitHub, so that what I push for you is yours; `link NAME` one at a tool's server
• `docker`, `local`, `cloud`, `provider NAME`: where your messages run from now on
{ASK} Only you see this."""
_log = get_logger(__name__)


class SlashCommand:
    """Answers `/orion`."""

    def __init__(
        self, overviews: Overviews, *, intake: Intake, links: AccountLinks | None = None
    ) -> None:
        """`links`: None = people link no accounts here."""
        self._links = links
        self._overviews = overviews
        self._intake = intake
        self._words: Mapping[str, Callable[[RunRequest], Awaitable[str]]] = {
            "help": self._help,
            "status": self._status,
            "stop": self._stop,
            "runs": self._runs,
            "agents": self._agents,
            "usage": self._usage,
        }
        """Those that take nothing behind them."""

    async def answer(self, body: Mapping[str, Any]) -> str:
        """Returns what the asker is told, in mrkdwn; never raises."""
        text = " ".join(text_of(body, "text").split())
        request = self._request(body, text=_as_settings(text))
        if request is None:
            _log.info("event.ignored", reason="incomplete", type="slash_command")
            return NOT_NOW
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                said = self._refusal(request) or await self._answer(request, text)
        except (TimeoutError, OSError) as exc:
            _log.warning("command.failed", word=text[:20], error=type(exc).__name__)
            return NOT_NOW
        return said if len(said) <= MAX_ANSWER_CHARS else f"{said[: MAX_ANSWER_CHARS - 1]}…"

    def _request(self, body: Mapping[str, Any], *, text: str) -> RunRequest | None:
        """Returns the command as a message that says so would be read; it is never stored. None: it lacks something."""
        identity, now = self._overviews.identity(), self._overviews.ports.clock.now()
        team, channel, user = (text_of(body, f"{name}_id") for name in ("team", "channel", "user"))
        if not (is_id(team) and is_id(channel) and is_id(user)):
            return None
        ts = f"{now.timestamp():.6f}"
        return RunRequest(
            run_id=run_id_for(team=team, channel=channel, message_ts=ts, click=COMMAND),
            # Of its own workspace alone does it know runs and defaults.
            team=identity.team_id if identity else team,
            channel=channel,
            thread_ts=ts,
            message_ts=ts,
            user=user,
            text=text,
            surface=Surface.DM if channel.startswith("D") else Surface.CHANNEL,
            is_external=identity is not None and team != identity.team_id,
            received_at=now,
        )

    def _refusal(self, request: RunRequest) -> str:
        """Returns why the asker may not, or that the settings are misspelt; whoever may ask may use commands."""
        policy = self._overviews.policy
        refusal = find_refusal(request, policy, runs_last_hour=0, unfinished=0)
        if refusal is None:
            return ""
        said = escape(failure_text(refusal.code, refusal.detail))
        return f"{said}\n{ASK}" if refusal.code is ErrorCode.REQUEST_INVALID else said

    async def _answer(self, request: RunRequest, text: str) -> str:
        word, _, rest = text.partition(" ")
        word = word.lower() or "help"
        if word in self._words and not rest:
            return await self._words[word](request)
        if word in LINKING:
            return await self._change_link(word, request, rest)
        if (word, rest) == ("provider", ""):
            return self._name_providers()
        changing = ("settings", *SANDBOX_WORDS, "provider")
        if word in changing and request.options.command is not None:
            return await self._settings(request)
        known = (*self._words, *LINKING, *changing)
        if word not in known:
            return escape(as_sentence(unknown_word("command", word, known)))
        problem = f"{word} takes nothing behind it"
        if word not in self._words:
            problem = f"I do not understand {text[:SHOWN_CHARS]!r}"
        return f"{escape(as_sentence(problem))}\n{HELP}"

    async def _help(self, request: RunRequest) -> str:
        del request
        return HELP

    async def _status(self, request: RunRequest) -> str:
        unfinished = await self._overviews.ports.store.unfinished()
        own = [run for run in unfinished if _asker(run.request) == _asker(request)]
        others = len(unfinished) - len(own)
        entries = await self._overviews.entries(own)
        said = self._overviews.runs_text(entries) if own else "Nothing of yours goes on or waits."
        return f"{said}\nOf others: {others}."

    async def _stop(self, request: RunRequest) -> str:
        stopped = await self._intake.stop_own(request.team, request.channel, user=request.user)
        if not stopped:
            return "Nothing that you asked here goes on."
        entries = await self._overviews.entries(stopped)
        lines = (f"• {self._overviews.link_text(entry)}" for entry in entries)
        return "\n".join((f"I stop {len(stopped)}:", *lines))

    async def _runs(self, request: RunRequest) -> str:
        overview = await self._overviews.of(request.team, request.user)
        return self._overviews.runs_text(overview.entries)

    async def _agents(self, request: RunRequest) -> str:
        del request
        return self._overviews.agents_text()

    async def _usage(self, request: RunRequest) -> str:
        ledger = self._overviews.ports.ledger
        own, channel, _ = await ledger.of_day(request.team, request.user, request.channel)
        shown = [own, *([channel] if channel[2] is not None else [])]
        hourly = self._overviews.policy.runs_per_user_hour
        return "\n".join((*map(budget_text, shown), f"Runs: {hourly} an hour at the most"))

    async def _change_link(self, word: str, request: RunRequest, name: str) -> str:
        if self._links is None:
            return NO_LINKS
        if word == "unlink":
            return await self._links.unlink(request.owner, name)
        return await self._links.begin(request.owner, name, channel=request.channel)

    def _name_providers(self) -> str:
        known = ", ".join(f"`{name}`" for name in self._overviews.policy.sandboxes)
        there = f"there are: {known}" if known else "here are none to choose from"
        return f"A provider is not named; write `{COMMAND} provider NAME`; {there}."

    async def _settings(self, request: RunRequest) -> str:
        if channel_change(request) is not None:
            return "A channel hears who changes its defaults: please write it as a message, `@Orion settings channel …`."
        overviews = self._overviews
        run = Run(id=request.run_id, request=request, created_at=request.received_at)
        outcome = await answer_without_agent(
            run, overviews.ports, overviews.policy, overviews.catalog
        )
        if outcome is None:
            return HELP
        if outcome.error_code is not None:
            return escape(failure_text(outcome.error_code, outcome.told))
        return escape(outcome.answer)


def _as_settings(text: str) -> str:
    """Returns the message that says the same about settings; `settings` for every other command, which anybody may write who may ask."""
    word, _, rest = text.partition(" ")
    word = word.lower()
    if word == "settings":
        return text
    if word == "provider" and rest:
        return f"settings sandbox={rest}"
    if word in SANDBOX_WORDS:
        return f"settings sandbox={word} {rest}".strip()
    return "settings"


def _asker(request: RunRequest) -> tuple[str, str]:
    return request.team, request.user

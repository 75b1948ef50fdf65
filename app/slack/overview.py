"""What a person is told of their own runs, defaults and money, and operators of the whole: read from the store, as mrkdwn.

Nobody is told another person's text: of others there are counts alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from app.approvals.records import Approval
from app.runs.approvals import may_answer
from app.runs.budget import DayBudget, render_money, to_micro
from app.runs.commands import describe_choice, line_of_setting
from app.runs.model import SENT, Run, RunState
from app.runs.options import RunOptions
from app.runs.policy import RunPolicy
from app.runs.ports import RunPorts
from app.runs.request import MessageContent, RunId
from app.runs.selection import Catalog, Choice, OpenQuestions, SelectionContext, choose
from app.slack.api import BotIdentity
from app.slack.markdown import escape, neutralise

SHOWN_RUNS: Final = 10
SHOWN_CHARS: Final = 80
"""Of a question."""
_STATES: Final[Mapping[RunState, str]] = {
    RunState.ACCEPTED: "waits",
    RunState.QUEUED: "waits",
    RunState.PLACED: "waits",
    RunState.RUNNING: "goes on",
    RunState.ANSWERING: "is being told",
    RunState.SUCCEEDED: "answered",
    RunState.FAILED: "failed",
    RunState.STOPPED: "stopped",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """How it goes, for operators; counts of everybody's runs."""

    counts: Mapping[RunState, int]
    undelivered: int
    """Ended runs whose thread could not be told."""
    spent: DayBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A question of a person, and what became of it."""

    question: Run
    """The person's own run."""
    run: Run
    """The one that stands for it now: after it has asked for its repository another one, of whoever chose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    entries: Sequence[Entry]
    """The person's latest, the newest first."""
    choice: Choice
    """What a message of theirs would get, where no channel says otherwise."""
    budget: DayBudget
    waiting: Sequence[Approval]
    """What the person may say yes or no to, the oldest first."""
    deployment: Deployment | None
    """None = the person is no operator."""


class Overviews:
    """Reads what people are told. Raises what the store does, TimeoutError and OSError; the caller bounds it."""

    def __init__(
        self,
        ports: RunPorts,
        *,
        catalog: Catalog,
        policy: RunPolicy,
        identity: Callable[[], BotIdentity | None],
        operators_page: str = "",
    ) -> None:
        """`operators_page`: its address, for operators; empty = there is none."""
        self.operators_page = operators_page
        self.ports = ports
        self.catalog = catalog
        self.policy = policy
        self.identity = identity

    async def of(self, team: str, user: str) -> Overview:
        """Returns a person's overview."""
        ports = self.ports
        context = SelectionContext(person=await ports.defaults.get(team, user))
        own, _, whole = await ports.ledger.of_day(team, user, "")
        asked = await ports.approvals.waiting(team)
        deployment = None
        if user in self.policy.operators:
            deliveries = await ports.store.deliveries()
            deployment = Deployment(
                counts=await ports.store.counts(),
                undelivered=sum(count for text, count in deliveries.items() if text != SENT),
                spent=whole,
            )
        return Overview(
            entries=await self.entries(await ports.store.recent_of(team, user, limit=SHOWN_RUNS)),
            choice=choose(RunOptions(), context, self.catalog),
            budget=own,
            waiting=[one for one in asked if may_answer(one, user, self.policy)],
            deployment=deployment,
        )

    async def entries(self, runs: Sequence[Run]) -> Sequence[Entry]:
        """Returns an entry for each question among the runs of one person: one that has asked for its repository and the run that goes on with it are one."""
        questions, found = OpenQuestions(self.ports), dict[RunId, Entry]()
        for run in runs:
            question = await self._question_of(run)
            standing = await questions.newest(question)
            found.setdefault(standing.id, Entry(question=question, run=standing))
        return list(found.values())

    async def _question_of(self, run: Run) -> Run:
        """Returns the run that asked for the repository which was chosen for this one, where it is the same person's; else this one."""
        request = run.request
        if not (request.picked_repo and request.retry_of):
            return run
        asking = await self.ports.store.get(request.retry_of)
        if asking is None or not asking.result.candidates or asking.request.user != request.user:
            return run
        return asking

    def runs_text(self, entries: Sequence[Entry]) -> str:
        """Returns a line for each entry of one person, with a link to its thread."""
        return "\n".join(map(self._line, entries)) or "Nothing yet."

    def _line(self, entry: Entry) -> str:
        run = entry.run
        state = "asks which repository is meant" if run.result.candidates else _STATES[run.state]
        if run.stop_requested_by is not None and not run.state.is_final:
            state = "is being stopped"
        code = f" `{run.result.error_code}`" if run.result.error_code else ""
        cost = _cost_text(run)
        return f"• {self.link_text(entry)} {state}{code}{cost}"

    def link_text(self, entry: Entry) -> str:
        """Returns an entry's question, shortened, with the permalink of its answer behind it; what is tried again, or goes on in a chosen repository, may be another person's, and is not shown."""
        request, identity = entry.question.request, self.identity()
        ts, thread_ts = entry.run.reply_ts or request.thread_ts, request.thread_ts
        address = identity.link(request.channel, ts, thread_ts=thread_ts) if identity else ""
        label = short(self.ports.mask(request.text)) or _what_came(request.content)
        if request.click_ts:
            repo = request.picked_repo
            label = f"Chosen repository: {short(repo)}" if repo else "Retry"
        return f"<{address}|{label}>" if address else label

    def choice_text(self, choice: Choice) -> str:
        return "\n".join(f"• {escape(line_of_setting(one))}" for one in describe_choice(choice))

    def agents_text(self) -> str:
        """Returns the agents and sandboxes that may be asked for."""
        catalog = self.catalog
        lines = [
            f"• `{name}`, model `{escape(entry.model_id(entry.model))}`"
            + (" (the default)" if name == catalog.agent else "")
            for name, entry in sorted(catalog.agents.items())
        ]
        words = ", ".join(f"`{word}`" for word in sorted(catalog.sandboxes))
        where = f"Sandboxes: {words or f'`{catalog.provider}`'}."
        return "\n".join((*lines, where, "Ask one by `use NAME:` before a message."))


def budget_text(budget: DayBudget) -> str:
    """Returns what was spent today, and of how much."""
    of_whom, spent, limit, unpriced = budget
    of, end = (f" of {render_money(limit)}", "") if limit is not None else ("", ", no limit")
    if unpriced:
        end += f", and {unpriced} model call{'s' if unpriced > 1 else ''} whose cost nobody knows"
    return f"{of_whom[0].upper()}{of_whom[1:]}: {render_money(spent)}{of} spent today (UTC){end}"


def deployment_text(deployment: Deployment, policy: RunPolicy, *, page: str = "") -> str:
    """Returns how it goes with everybody's runs, and where all of it is."""
    counts: dict[str, int] = {}
    for state, count in deployment.counts.items():
        counts[_STATES[state]] = counts.get(_STATES[state], 0) + count
    said = ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"
    unfinished = sum(count for one, count in deployment.counts.items() if not one.is_final)
    lines = [
        f"Runs kept: {said}",
        f"Queue: {unfinished} of {policy.queue_limit}; {policy.capacity} at once in each process",
        budget_text(deployment.spent),
    ]
    if deployment.undelivered:
        lines.append(f"Answers that Slack did not take: {deployment.undelivered}")
    if page:
        lines.append(f"<{page}|All of it>, behind `ORION_OPS_TOKEN`")
    return "\n".join(f"• {line}" for line in lines)


def short(text: str) -> str:
    """Returns the beginning of somebody's own question as it can stand in mrkdwn, and in a link's label."""
    plain = " ".join(text.split()).replace("|", "\u2223")
    cut = plain if len(plain) <= SHOWN_CHARS else f"{plain[: SHOWN_CHARS - 1]}…"
    return escape(neutralise(cut))


def _what_came(content: MessageContent) -> str:
    """Returns what a question without words is."""
    files = len(content.files)
    if content.shared:  # a card or a table seldom comes alone
        return "(a forwarded message)"
    if files:
        return "(a file)" if files == 1 else f"({files} files)"
    return "(no text)"


def _cost_text(run: Run) -> str:
    """Returns what an agent has cost, behind a comma; of its own words nothing, for what ended without one."""
    cost_usd = run.result.cost_usd
    if cost_usd is None:
        return ", cost unknown" if run.attempt and run.state.is_final else ""
    return f", {render_money(to_micro(cost_usd))}" if cost_usd else ""

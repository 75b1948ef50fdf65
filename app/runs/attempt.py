"""One attempt of a run: what its steps share, how its progress is told while it goes, and what comes of it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Protocol

from agent_scripts.adapter import AgentPaths
from agent_scripts.events import AgentErrorCode, TurnFinished
from app.aio import PAUSE_S, RETRY_S, Gate, always_open, retry_store
from app.approvals.questions import Question
from app.approvals.rules import Deed
from app.egress.tally import Tally, render_refused
from app.errors import FROM_AGENT, ErrorCode, LeaseLostError, OrionError
from app.log import get_logger
from app.runs.broker import (
    CLIENT_GONE,
    Before,
    GrantHooks,
    NotApprovedError,
    RunApprovals,
    StillWaitingError,
    find_failure,
)
from app.runs.budget import AttemptCost, Excess, Spending
from app.runs.history import Conversation, FileExchange
from app.runs.model import (
    Checkpoint,
    Difference,
    ModelCall,
    Outcome,
    Resumption,
    Run,
    RunState,
    SharedFile,
)
from app.runs.ports import HOW_TO_CHANGE, RunPorts, RunTrace, TraceStep
from app.runs.progress import Display, ProgressTracker, Transcript, keep_refreshing
from app.runs.request import RunId
from app.runs.selection import Choice, Chosen, encode_choice, no_such_model
from app.runs.stop import AttemptTime, RunStoppedError, StopRequest

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    name: str = ""
    """Which a pull request has beside their Slack id; empty where there is no repository."""
    own_keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    """See `OwnKeyStore`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecalledStart:
    """Says how an agent was started, as far as a later slice must know."""

    paths: AgentPaths
    is_last: bool
    session_id: str | None
    problem: str


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One execution of a run as its steps see it: what is given, and what they leave to be told."""

    run: Run
    choice: Choice = field(default_factory=Choice)
    asker: Asker = field(default_factory=Asker)
    conversation: Conversation
    """In a later slice without what was said, until `read_conversation`."""
    read_conversation: Callable[[], Awaitable[Conversation]] | None = None
    load_spending: Callable[[], Awaitable[Spending]] | None = None
    """Counts anew, in a later slice: model calls may have been made between slices, and by way of other processes."""
    trace: RunTrace
    stop: StopRequest
    display: Display
    time: AttemptTime
    cost: AttemptCost = field(default_factory=AttemptCost)
    transcript: Transcript = field(default_factory=Transcript)
    may_act: Gate = always_open
    exchange: FileExchange | None = None
    """Through which files of messages come, and those for people go."""
    has_secret: Callable[[bytes], bool] = lambda _: False
    mask: Callable[[str], str] = str
    approvals: RunApprovals | None = None
    """None = it asks nobody."""
    on_effect: Callable[[], Awaitable[None]] | None = None
    """Writes into the run's record that it may change something outside."""
    model_failure: AgentErrorCode | None = None
    """Of the last call of its models; None = it has an answer, or there was none."""
    agent_step: TraceStep | None = None
    checkpoint: Checkpoint | None = None
    """Where an earlier slice has left it; None = this is the first one."""
    about_channel: str = field(default="", repr=False)
    """`ChannelMemory.render_for_agent`."""
    agent_started_at: datetime | None = None
    hand_over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the slice shall end, as others are to go on with what goes here."""
    has_exited: bool = False
    """By its supervisor's word, the agent and all it started."""
    sandbox_id: str | None = None
    event_offset: int = 0
    traced_seq: int = 0
    """`Checkpoint.traced_seq`."""
    resumed: Resumption | None = None
    notes: list[str] = field(default_factory=list)
    """Told below the answer."""
    difference: Difference | None = None
    """What it did to the thread's files."""
    shared: tuple[SharedFile, ...] = ()
    """`Outcome.files`."""
    heard: dict[RunId, None] = field(default_factory=dict)
    """`Outcome.heard`, in order."""
    tally: Tally = field(default_factory=Tally)
    """Of the hosts that its sandbox reached by the proxy, or reached for."""

    @property
    def tracker(self) -> ProgressTracker:
        return self.display.tracker

    @property
    def remaining_s(self) -> float:
        return self.time.remaining_s

    @property
    def asks_people(self) -> bool:
        """Returns whether its agent may ask people."""
        return self.approvals is not None and self.approvals.ask_person is not None

    @property
    def cost_usd(self) -> float | None:
        return self.cost.total_usd(is_repeated=self.run.attempt > 1)

    @property
    def hooks(self) -> GrantHooks:
        return GrantHooks(
            on_call=self.count_call,
            on_effect=self.on_effect,
            refusal=self.cost.refusal,
            may_act=self.may_act,
            approvals=self._approvals_in_step(),
            tally=self.tally,
        )

    def leave(
        self, recalled: RecalledStart, *, environment_id: str | None, is_new: bool
    ) -> Checkpoint:
        """Returns how it stands, while its agent works on."""
        cost, earlier = self.cost, self.checkpoint
        return Checkpoint(
            choice=encode_choice(self.choice),
            began_at=self.time.started_at,
            started_at=self.agent_started_at or self.time.now,
            directory=recalled.paths.run,
            scripts=recalled.paths.waiting,
            traced_seq=self.traced_seq,
            is_last_start=recalled.is_last,
            session_id=recalled.session_id,
            problem=recalled.problem,
            environment_id=environment_id,
            is_new=is_new,
            resumed=self.resumed,
            told_usd=tuple(cost.told_usd),
            is_cut_short=cost.is_cut_short,
            excess=cost.excess.sentence if cost.excess else "",
            notes=tuple(self.notes),
            hosts=self.tally.uses,
            still_s=self.time.still_s,
            model_failure=self.model_failure or "",
            was_handed_over=self.hand_over.is_set()
            or (earlier is not None and earlier.was_handed_over),
        )

    async def count_again(self) -> None:
        """Counts all that the run has spent, by whatever process and in whatever slice."""
        if self.load_spending is not None:
            self.cost.restart(await retry_store(self.load_spending))

    def _approvals_in_step(self) -> RunApprovals | None:
        """Returns how the broker asks people for it, with its clock and its trace."""
        asks = self.approvals
        if asks is None:
            return None
        ask_person = self.ask_person if asks.ask_person else None
        return replace(asks, approve=self.approve, ask_person=ask_person)

    async def approve(self, deed: Deed, before: Before) -> None:
        """Implements Approve; meanwhile its time stands still."""
        if self.approvals is not None:
            with ExitStack() as stack:
                if self.approvals.covers(deed):
                    step = stack.enter_context(self.trace.step("approval"))
                    step.set(kind=deed.kind, target=deed.target)
                    stack.enter_context(self._waiting_for_people())
                await self.approvals.approve(deed, before)

    async def ask_person(self, question: Question) -> str:
        """Implements AskPerson; meanwhile its time stands still."""
        if self.approvals is None or self.approvals.ask_person is None:
            raise NotApprovedError("nobody can be asked here")
        with self.trace.step("question") as step, self._waiting_for_people():
            step.set(options=len(question.options), who=question.who)
            return await self.approvals.ask_person(question)

    @contextmanager
    def _waiting_for_people(self) -> Iterator[None]:
        """Its time stands still while inside, and its message says why."""
        try:
            with self.time.standing_still(), self.tracker.waiting():
                self.show()
                yield
        finally:
            self.show()

    async def until_approved(self, deed: Deed) -> None:
        """Returns when Orion itself may do this for the run, once and now.

        Raises:
            NotApprovedError: it may not.
            RunStoppedError: the run was stopped meanwhile.
        """
        tries = int(RETRY_S / PAUSE_S)
        async with self.stop.interrupt_on_stop():
            while True:
                try:
                    return await self.approve(deed, self._may_act)
                except StillWaitingError:
                    continue
                except (
                    OSError
                ) as exc:  # a database that is away for a moment costs nobody an answer
                    if (tries := tries - 1) < 0:
                        raise NotApprovedError("nobody can be asked now") from exc
                    await asyncio.sleep(PAUSE_S)

    async def _may_act(self) -> bool:
        await self.may_act()
        return True

    def note_missing(self, missing: Sequence[str]) -> None:
        """Notes for the person who asked what their message had that the agent is not given."""
        note = f"Not read, of what came with your message: {', '.join(missing)}."
        if missing and note not in self.notes:  # a later slice looks again
            self.notes.append(note)

    async def complete_conversation(self) -> None:
        """Reads what was said in the thread, if this is a later slice, which mostly needs none of it."""
        if self.read_conversation is not None:
            self.conversation = await self.read_conversation()

    def show(self) -> None:
        self.display.show(self.time.elapsed_s)

    def show_soon(self, *, is_told: bool = False) -> None:
        """Shows what was fed last; `is_told`: an earlier slice has."""
        if not is_told:
            self.display.show_soon(self.time.elapsed_s)

    def enter(self, phase: str) -> None:
        """Shows a step of Orion's own."""
        self.tracker.enter(phase)
        self.show()

    def count_call(self, call: ModelCall) -> None:
        counted = self.cost.count(call)
        is_gone = call.status == CLIENT_GONE
        if call.has_output and not (call.is_refused or is_gone):
            self.model_failure = find_failure(call)
        if self.agent_step is not None:
            self.agent_step.generation(counted)


CUT_THREAD = (
    "Not all of what was said in this thread before could be read: Slack did not tell it in time."
)
BY_MODEL = frozenset(
    {
        AgentErrorCode.EXECUTION_FAILED,
        AgentErrorCode.NO_ANSWER,
        AgentErrorCode.MODEL_RATE_LIMITED,
        AgentErrorCode.MODEL_OVERLOADED,
        AgentErrorCode.MODEL_UNAVAILABLE,
        AgentErrorCode.MODEL_CONTEXT_EXCEEDED,
        AgentErrorCode.MODEL_NOT_FOUND,
        AgentErrorCode.MODEL_AUTH_FAILED,
        AgentErrorCode.MODEL_BILLING,
    }
)
"""What an agent says of a turn that failed for its model."""
LIMIT_DETAILS: Mapping[AgentErrorCode, str] = {
    AgentErrorCode.TURN_LIMIT: "this took all the steps that I may take for one request",
    AgentErrorCode.OUTPUT_LIMIT: "this gave more output than I may handle for one request",
    AgentErrorCode.DISK_LIMIT: "its files took more space than my workspace has",
    AgentErrorCode.PROCESS_LIMIT: "this started more processes than my workspace allows",
}
"""Which limit it was, for the person who asked."""


MAX_DETAIL_CHARS = 4000
TOLD_WITH_DETAIL = (
    ErrorCode.BUDGET_EXCEEDED,
    ErrorCode.NOT_ALLOWED,
    ErrorCode.LIMIT_EXCEEDED,
    ErrorCode.INTERRUPTED,
    ErrorCode.MODEL_NOT_FOUND,
    ErrorCode.REPO_UNAVAILABLE,
    ErrorCode.REQUEST_INVALID,
)
"""Codes of an attempt whose detail is for the person who asked."""


"""How often the elapsed time is offered to the sink, which decides what is sent.

More often would say nothing new (it sends the time alone every 15 s), and with 1,000 runs took 4 % of a core.
"""

_OWN_KEY_REFUSED: Mapping[ErrorCode, str] = {
    ErrorCode.MODEL_AUTH_FAILED: f"the model did not accept your own key; {HOW_TO_CHANGE}",
    ErrorCode.MODEL_BILLING: f"the account of your own key has no credit left; {HOW_TO_CHANGE}",
}
"""For the person whose key it is: the operator can do nothing about it."""


class Runner(Protocol):
    """Runs one agent; see `executor.AgentRunner`."""

    async def execute(self, attempt: Attempt) -> TurnFinished | Checkpoint | None:
        """Runs an attempt's agent to its end, or to the slice's; None = what an earlier slice has left is lost.

        Raises:
            OrionError: it cannot be run.
            RunStoppedError: stopped before the agent had started.
        """
        ...


class Executor(Protocol):
    """Knows who runs which agent; see `executor.Runners`."""

    async def runner_for(self, run: Run) -> Runner:
        """Returns the runner of the run's agent, at its provider.

        Raises:
            OrionError: the provider cannot be used.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A run whose attempt begins."""

    run: Run
    choice: Choice
    conversation: Conversation
    stop: StopRequest
    started_at: datetime
    """The slice."""
    slice_s: float | None = None
    """How long it may take."""
    checkpoint: Checkpoint | None = None
    """Where the slice before has left it."""
    about_channel: str = field(default="", repr=False)
    """`Attempt.about_channel`."""
    hand_over: asyncio.Event = field(default_factory=asyncio.Event)
    """`Attempt.hand_over`."""
    approvals: RunApprovals | None = None
    """`Attempt.approvals`."""


@asynccontextmanager
async def open_attempt(
    ports: RunPorts, begun: Begun, *, trace: RunTrace, tell: Callable[[str], None]
) -> AsyncIterator[Attempt]:
    """Yields an attempt whose progress is told in the thread while inside; `tell` is given each line of its log.

    Raises:
        Exception: of a store, before anything was started.
    """
    run, choice = begun.run, begun.choice
    async with ports.replies.live(run) as live:
        own_keys = await retry_store(lambda: ports.own_keys.of(run.request.team, run.request.user))
        name = await ports.reader.name_of(run.request.user) if choice.repo.value else ""
        attempt = Attempt(
            run=run,
            choice=choice,
            asker=Asker(name=name, own_keys=own_keys),
            conversation=begun.conversation,
            trace=trace,
            stop=begun.stop,
            display=Display(live=live, tracker=ProgressTracker(ports.mask)),
            time=_time_of(begun),
            cost=await _open_cost(ports, begun),
            transcript=Transcript(tell),
            checkpoint=begun.checkpoint,
            about_channel=begun.about_channel,
            hand_over=begun.hand_over,
            approvals=begun.approvals,
        )
        if begun.conversation.is_cut:
            attempt.notes.append(CUT_THREAD)
        if (checkpoint := begun.checkpoint) is not None:
            told = checkpoint.model_failure
            attempt.model_failure = AgentErrorCode(told) if told else None
            attempt.agent_started_at = checkpoint.started_at
            attempt.resumed = checkpoint.resumed
            attempt.notes.extend(checkpoint.notes)
            attempt.tally = Tally(checkpoint.hosts)
            attempt.traced_seq, attempt.event_offset = checkpoint.traced_seq, run.event_offset
            attempt.read_conversation = partial(read_conversation, run, ports)
            attempt.load_spending = partial(ports.ledger.load_spending, run)
            attempt.tracker.enter("Thinking")
        attempt.on_effect = partial(_note_effect, ports, attempt)
        attempt.may_act, attempt.exchange = ports.may_act, ports.exchange
        attempt.has_secret, attempt.mask = ports.has_secret, ports.mask
        async with keep_refreshing(attempt.display.is_behind, attempt.show, ports.clock):
            yield attempt


def _time_of(begun: Begun) -> AttemptTime:
    began_at = begun.checkpoint.began_at if begun.checkpoint else begun.started_at
    return AttemptTime(
        started_at=began_at,
        deadline_at=begun.run.deadline_at or began_at,
        before_s=max(0.0, (begun.started_at - began_at).total_seconds()),
        slice_s=begun.slice_s,
        max_still_s=begun.approvals.max_wait_s if begun.approvals else 0,
        earlier_still_s=begun.checkpoint.still_s if begun.checkpoint else 0,
    )


async def _open_cost(ports: RunPorts, begun: Begun) -> AttemptCost:
    run, ledger, checkpoint = begun.run, ports.ledger, begun.checkpoint
    if checkpoint is None:
        return AttemptCost(spending=await retry_store(lambda: ledger.begin_spending(run)))
    spending = await retry_store(lambda: ledger.load_spending(run))
    if checkpoint.excess:
        spending.excess = Excess(sentence=checkpoint.excess)
    return AttemptCost(
        spending=spending,
        told_usd=list(checkpoint.told_usd),
        is_cut_short=checkpoint.is_cut_short,
    )


async def execute(
    attempt: Attempt, executor: Executor, *, model: Chosen, mask: Callable[[str], str]
) -> Outcome | Checkpoint | None:
    """Returns the attempt's outcome: whatever goes wrong is part of it. The agent is dead when this returns one.

    A checkpoint = the slice has ended, and the agent works on; None = what an earlier slice has left is lost.
    """
    answer, detail, code, is_told = "", "", None, False
    try:
        runner = await executor.runner_for(attempt.run)
        finished = await runner.execute(attempt)
        if not isinstance(finished, TurnFinished):
            return finished
        answer, detail = finished.text, finished.detail
        attempt.notes.extend(finished.notes)
        if finished.error is not None:
            error = finished.error
            if attempt.model_failure is not None and error in BY_MODEL:
                error = attempt.model_failure  # the broker knows better than the agent's words
            code = FROM_AGENT[error]
            detail = LIMIT_DETAILS.get(error, detail)
    except RunStoppedError:
        pass
    except LeaseLostError:
        raise
    except OrionError as exc:
        code, detail, is_told = exc.code, str(exc), exc.is_told
    except Exception as exc:  # noqa: BLE001 - the outermost step: a bug must end in a reply too
        _log.exception("run.crashed", code=ErrorCode.INTERNAL)
        code, detail = ErrorCode.INTERNAL, f"{type(exc).__name__}: {exc}"
    await attempt.count_again()
    if code is ErrorCode.MODEL_NOT_FOUND:
        detail = no_such_model(model)
    outcome = _outcome_of(attempt, answer, code, detail, mask=mask)
    return replace(outcome, is_told=True) if is_told else outcome


def _outcome_of(
    attempt: Attempt,
    answer: str,
    code: ErrorCode | None,
    detail: str,
    *,
    mask: Callable[[str], str],
) -> Outcome:
    if attempt.cost.own_key_protocol and code in _OWN_KEY_REFUSED:
        code, detail = ErrorCode.REQUEST_INVALID, _OWN_KEY_REFUSED[code]
    if (excess := attempt.cost.excess) is not None:
        code, detail = ErrorCode.BUDGET_EXCEEDED, excess.sentence
    notes = [*attempt.notes, *filter(None, [render_refused(attempt.tally)])]
    stopped_by = attempt.stop.user
    if stopped_by is not None and (code is not None or not answer):
        state, code = RunState.STOPPED, None
    else:
        state = RunState.SUCCEEDED if code is None else RunState.FAILED
    return Outcome(
        state=state,
        answer=mask("\n\n".join(part for part in (answer, *notes) if part)),
        error_code=code,
        detail=mask(detail)[:MAX_DETAIL_CHARS],
        is_told=code in TOLD_WITH_DETAIL,
        stopped_by=stopped_by if state is RunState.STOPPED else None,
        duration_s=attempt.time.elapsed_s,
        steps=attempt.tracker.steps,
        changes=attempt.difference.changes if attempt.difference else None,
        files=attempt.shared,
        heard=tuple(attempt.heard) if state is RunState.SUCCEEDED else (),
        hosts=tuple(
            replace(one, host=mask(one.host), reason=mask(one.reason)) for one in attempt.tally.uses
        ),
        resumed=attempt.resumed,
        usage=attempt.cost.usage,
        cost_usd=attempt.cost_usd,
    )


async def _note_effect(ports: RunPorts, attempt: Attempt) -> None:
    """Notes an effect in the attempt, too: an agent that was attached to and fails after one must not be run again."""
    attempt.run = await retry_store(
        lambda: ports.store.update(attempt.run.id, has_outside_effect=True)
    )


async def read_conversation(run: Run, ports: RunPorts) -> Conversation:
    """Reads what was said in the run's thread before; Slack's limits may make that take some seconds."""
    view = await ports.reader.read(run.request)
    if view.request.is_root:
        return Conversation(request=view.request)
    records = await retry_store(lambda: ports.store.of_thread(run.thread))
    return Conversation(
        request=view.request, records=records, thread=view.messages, is_cut=view.is_cut
    )

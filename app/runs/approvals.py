"""Holds up what an agent is about to do outside until a person has said yes, asks people what it wants to know, and counts what they say."""

import asyncio
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from app.aio import open_task_group
from app.approvals.questions import MAX_QUESTIONS, TOOL, Question
from app.approvals.records import (
    MAX_WAITING_OF_RUN,
    TELLING_S,
    Approval,
    ApprovalAnswer,
    ApprovalState,
    TooManyWaitingError,
    Unanswered,
)
from app.approvals.rules import (
    ASKER,
    CHANNEL,
    OPERATORS,
    ApprovalRule,
    Decision,
    Deed,
    DeedKind,
    is_person,
)
from app.approvals.showing import TooLongToShowError, render_deed
from app.audit.records import Act, AuditEntry
from app.errors import ErrorCode, LeaseLostError, OrionError
from app.log import get_logger
from app.permissions.rules import Right
from app.runs.attempt import Attempt
from app.runs.broker import (
    Before,
    ExpiredError,
    NotApprovedError,
    RunApprovals,
    StillWaitingError,
    UnrecordedError,
)
from app.runs.model import Run
from app.runs.policy import RunPolicy, by_rule, may_stop
from app.runs.ports import Dispatcher, RunPorts
from app.runs.request import RunId

HOLD_S: Final = 45.0
"""A request is held so long while people think; then the agent is told to ask again. Gemini CLI, as its settings are made here, gives up after 60 s."""
PARK_AFTER_S: Final = 10.0
"""Then the slot of its run is somebody else's, until there is an answer or the agent goes on."""
LOOK_INTERVAL_S: Final = 0.5
"""Between two looks for an answer that came to another process."""
LOOK_AGE_S: Final = 0.25
"""So old may a look be that another request here has made, of all that wait here."""
TOLD_TOGETHER: Final = 8
"""Cards that are brought up to date at once: the answers of runs are in the same line at Slack."""
KEEP_INTERVAL_S: Final = 5.0
"""Between two looks for what nobody answered in time, and for cards that a process left behind."""
PRESS_TIMEOUT_S: Final = 2.0
"""To write down what somebody says."""
ACKNOWLEDGED_S: Final = 2.5
"""For all of a press: Slack's acknowledgement is due after 3 s."""
SHOW_TIMEOUT_S: Final = TELLING_S - 3.0
"""For a card, less than nobody else brings it up to date."""

OVER: Final = "the run is over"
DONE: Final = "this was allowed once, and is done; ask anew to do it again"
TOO_MANY: Final = f"{MAX_WAITING_OF_RUN} things wait for people already: wait for their answers"
TOO_LONG: Final = (
    "this is too long to be shown to the people who would allow it: do it in smaller parts"
)
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Press:
    """A person pressed a button of a card."""

    approval_id: str
    user: str
    is_allowed: bool
    is_for_thread: bool = False
    option: int | None = None
    """Of a question: which of its options, from 0."""
    text: str = field(default="", repr=False)
    """Of a question: what they wrote instead."""
    is_external: bool = False
    """By somebody of another company."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """An approval or a question that requests at this process wait for."""

    until: datetime
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    requests: int = 0


class ApprovalDesk:
    """One for a process; what it knows of waiting deeds is in the store, where all processes have it."""

    def __init__(
        self,
        ports: RunPorts,
        *,
        dispatcher: Dispatcher,
        policy: RunPolicy,
        hold_s: float = HOLD_S,
    ) -> None:
        self._dispatcher = dispatcher
        self._ports = ports
        self._policy = policy
        self._hold_s = hold_s
        self._waiting: dict[str, _Waiting] = {}
        """By its ids."""
        self._found: Mapping[str, Approval] = {}
        """What the last look has read."""
        self._looked_at_s = -math.inf
        """When that began, by the loop's clock."""
        self._looking = asyncio.Lock()
        """Held by the one that looks."""

    def of(self, run: Run) -> RunApprovals | None:
        """Returns how a run asks; None = there are no rules, and its agent may not."""
        rules, channel = self._policy.approvals, run.request.channel
        asks_people = self._policy.asks_people_in(channel)
        if not (rules or asks_people):
            return None
        run_id = run.id
        return RunApprovals(
            approve=partial(self.approve, run_id),
            covers=lambda deed: rules.find(deed, channel=channel) is not None,
            state_of=partial(self.state_of, run_id),
            waited_s=partial(self.waited_s, run_id),
            max_wait_s=self._policy.max_still_s,
            ask_person=partial(self.ask_person, run_id) if asks_people else None,
        )

    async def approve(self, run_id: RunId, deed: Deed, before: Before) -> None:
        """Returns when a run may do this, once and now. Whoever may not change anything outside any more is let do nothing.

        Raises:
            NotApprovedError: a rule or a person says no, nobody has said yes in time, or `before` says no.
            StillWaitingError: after `hold_s`.
            OSError: the database does not answer.
        """
        rules = self._policy.approvals
        run = await self._ports.store.get(run_id) if rules else None
        if rules and run is None:
            raise NotApprovedError(OVER)
        rule = rules.find(deed, channel=run.request.channel) if run is not None else None
        decision = rule.decision if rule is not None else Decision.ALLOW
        if rule is not None:
            await self._ports.approvals.count({rule.words: 1})
        if rule is not None and decision is Decision.DENY:
            raise NotApprovedError(f"{deed.words} is not allowed here (rule {rule.words})")
        allowed = None
        if run is not None and rule is not None and decision is Decision.ASK:
            allowed = await self._ask_for(run, rule, deed)
        if not await before():
            raise UnrecordedError
        if allowed is None:
            return
        if not await self._ports.approvals.use(allowed.id):
            # Several may have waited for one yes, which holds for the rest of the run where it is not for one deed.
            used = await self._ports.approvals.get(allowed.id)
            if allowed.is_once or used is None or used.state is not ApprovalState.USED:
                raise NotApprovedError(DONE)
            return
        _log.info("approval.used", run_id=run_id, approval=allowed.id, target=deed.target)
        await self._tell(allowed.id)

    async def ask_person(self, run_id: RunId, question: Question) -> str:
        """Implements AskPerson for a run."""
        run = await self._ports.store.get(run_id)
        if run is None:
            raise NotApprovedError(OVER)
        mask, deed = self._ports.mask, question.deed
        others = [
            row
            for row in await self._ports.approvals.of_run(run_id)
            if row.kind is DeedKind.QUESTION and row.digest != deed.digest
        ]
        if len(others) >= MAX_QUESTIONS:
            raise NotApprovedError(
                f"you have asked {MAX_QUESTIONS} times: decide the rest yourself"
            )
        row = replace(
            self._row(run, deed, by=(question.who,)),
            target=mask(question.text),
            options=tuple(map(mask, question.options)),
            otherwise=mask(question.otherwise),
        )
        answered = await self._ask(row, attempt=run.attempt)
        match answered.state:
            case ApprovalState.WAITING:
                raise StillWaitingError(
                    f"nobody has answered yet: call {TOOL} with exactly the same arguments again to go on waiting"
                )
            case ApprovalState.ALLOWED | ApprovalState.USED:
                if await self._ports.approvals.use(answered.id):
                    await self._tell(answered.id)
                return f"{answered.answers[-1].user} answered: {answered.answers[-1].text}"
            case ApprovalState.DENIED:
                return "They leave that to you: go on as you think best."
            case ApprovalState.EXPIRED:
                return f"Nobody answered in time. Do what you said you would do then: {question.otherwise}"
            case _:
                raise NotApprovedError(OVER)

    async def state_of(self, run_id: RunId, kind: DeedKind) -> ApprovalState | None:
        """Returns how what a run has asked for last stands, of that kind; None = it has asked for none. Raises: OSError."""
        rows = [row for row in await self._ports.approvals.of_run(run_id) if row.kind is kind]
        return rows[-1].state if rows else None

    async def waited_s(self, run_id: RunId, since: datetime) -> float:
        """Returns for how many seconds since then something of a run has waited for people, what waited at once counted once. Raises: OSError."""
        now = self._ports.clock.now()
        waited, until = timedelta(), since
        rows = await self._ports.approvals.of_run(run_id)
        for row in sorted(rows, key=lambda row: row.asked_at):
            began, ended = max(row.asked_at, until), min(row.ended_at or now, row.until)
            waited += max(ended - began, timedelta())
            until = max(until, ended)
        return waited.total_seconds()

    async def press(self, press: Press) -> str:
        """Counts what a person says. Who may not say it, or says it too late, is told so alone, unless they have written something.

        Returns:
            Why it has changed nothing, a sentence; empty when it has, or nothing like it waits.

        Raises:
            TimeoutError: the database is sick; do not acknowledge.
        """
        until = asyncio.get_running_loop().time() + ACKNOWLEDGED_S
        async with asyncio.timeout(PRESS_TIMEOUT_S):
            approval = await self._ports.approvals.get(press.approval_id)
            run = await self._ports.store.get(RunId(approval.run_id)) if approval else None
            if approval is None or run is None:
                _log.info("event.ignored", reason="nothing_to_approve", approval=press.approval_id)
                return ""
            problem = why_not_answer(approval, press, self._policy)
            if not problem:
                answer = ApprovalAnswer(
                    user=press.user,
                    is_allowed=press.is_allowed,
                    at=self._ports.clock.now(),
                    text=_text_of(press, approval),
                )
                answered = await self._ports.approvals.answer(
                    approval.id,
                    answer,
                    is_for_thread=press.is_for_thread,
                    entry=self._entry(approval, press),
                )
                problem = _WHY_NOT.get(answered, "") if isinstance(answered, str) else ""
            if problem:
                await self._ports.audit.add(self._entry(approval, press, refused=problem))
        if not problem:
            _log.info(
                "approval.answered",
                run_id=run.id,
                approval=approval.id,
                user=press.user,
                is_allowed=press.is_allowed,
            )
            self._wake(approval.id)
        with suppress(TimeoutError):  # of a card `keep` does what is left
            async with asyncio.timeout_at(until):
                if not problem:
                    await self._tell(approval.id)
                elif not press.text:
                    await self._ports.replies.show_ephemeral(
                        run.request.thread, user=press.user, text=problem
                    )
        return problem

    def _entry(self, approval: Approval, press: Press, *, refused: str = "") -> AuditEntry:
        """Returns what is kept of what a person says to an approval or a question."""
        said = "refused" if refused else "yes" if press.is_allowed else "no"
        is_question = approval.kind is DeedKind.QUESTION
        deed = "" if is_question else f" {approval.target}"
        return AuditEntry(
            id=f"{approval.id}:{press.user}:{said}",
            at=self._ports.clock.now(),
            team=approval.team,
            channel=approval.channel,
            user=press.user,
            act=Act.APPROVE,
            target=f"{'yes' if press.is_allowed else 'no'} to {approval.kind}{deed}",
            is_allowed=not refused,
            reason=refused.rstrip(".") or f"asked were {', '.join(approval.by)}",
            run_id=approval.run_id,
        )

    async def keep_forever(self) -> None:
        """Ends what nobody answered in time or what its run has left, and brings all cards up to date, until cancelled."""
        is_sick = False
        while True:
            await asyncio.sleep(KEEP_INTERVAL_S)
            try:
                await self.keep()
            except OSError as exc:
                if not is_sick:
                    _log.warning("approval.unkept", reason=str(exc))
                is_sick = True
            else:
                is_sick = False

    async def keep(self) -> None:
        """Does so once. Raises: OSError."""
        room = asyncio.Semaphore(TOLD_TOGETHER)

        async def tell(approval_id: str) -> None:
            async with room:
                await self._tell(approval_id)

        async with open_task_group() as group:
            for approval in await self._ports.approvals.close():
                self._wake(approval.id)
                group.create_task(tell(approval.id))

    def _row(self, run: Run, deed: Deed, *, by: tuple[str, ...]) -> Approval:
        """Returns what is kept of something that a run needs people for."""
        now = self._ports.clock.now()
        return Approval(
            id="",
            run_id=run.id,
            team=run.request.team,
            channel=run.request.channel,
            thread_key=run.thread.key,
            thread_ts=run.thread.thread_ts,
            asker=run.request.user,
            kind=deed.kind,
            target=deed.target,
            shown="",
            digest=deed.digest,
            rule="",
            by=by,
            people=1,
            asked_at=now,
            until=now + timedelta(seconds=self._policy.approval_timeout_s),
        )

    async def _ask(self, row: Approval, *, attempt: int) -> Approval:
        """Keeps and shows it, unless that was done before; returns it with its answer, or as it is after `hold_s`. `attempt`: of its run."""
        until = asyncio.get_running_loop().time() + self._hold_s
        try:
            asked = await self._ports.approvals.ask(row, attempt=attempt)
        except TooManyWaitingError as exc:
            raise NotApprovedError(TOO_MANY) from exc
        except LeaseLostError as exc:
            raise NotApprovedError(OVER) from exc
        if not asked.card_ts:
            await self._tell(asked.id)
        return await self._wait(asked, until=until)

    async def _ask_for(self, run: Run, rule: ApprovalRule, deed: Deed) -> Approval | None:
        """Returns what was allowed, to be used; None = it is allowed in the whole thread. Raises: as `approve`."""
        store, words = self._ports.approvals, rule.words
        asker = run.request.user
        if await store.is_allowed_in(run.thread.key, asker=asker, rule=words, target=deed.target):
            return None
        try:
            shown = render_deed(deed, self._ports.mask)
        except TooLongToShowError:
            raise NotApprovedError(TOO_LONG) from None
        row = self._row(run, deed, by=rule.by)
        row = replace(row, shown=shown, rule=words, people=rule.people)
        answered = await self._ask(row, attempt=run.attempt)
        match answered.state:
            case ApprovalState.ALLOWED:
                return answered
            case ApprovalState.WAITING:
                raise StillWaitingError(
                    f"waiting for a person to allow {deed.words}: do exactly the same again to go on waiting, "
                    "or tell the person what you would do"
                )
            case ApprovalState.DENIED:
                raise NotApprovedError(f"a person said no to {deed.words}")
            case ApprovalState.EXPIRED:
                raise ExpiredError(
                    f"nobody allowed {deed.words} in time, which is no refusal: it is not done yet"
                )
            case ApprovalState.USED if not answered.is_once:
                return None
            case ApprovalState.USED:
                raise NotApprovedError(DONE)
            case _:
                raise NotApprovedError(OVER)

    async def _wait(self, approval: Approval, *, until: float) -> Approval:
        """Returns it with its answer, or as it is then, by the loop's clock."""
        park_at = asyncio.get_running_loop().time() + PARK_AFTER_S
        waiting = self._waiting.setdefault(approval.id, _Waiting(approval.until))
        waiting.requests += 1
        try:
            approval = await self._look(approval, waiting.changed, until=min(park_at, until))
            if approval.state is ApprovalState.WAITING and park_at < until:
                async with self._dispatcher.parked(RunId(approval.run_id)):
                    approval = await self._look(approval, waiting.changed, until=until)
        finally:
            waiting.requests -= 1
            if not waiting.requests:
                del self._waiting[approval.id]
        return approval

    async def _look(self, approval: Approval, changed: asyncio.Event, *, until: float) -> Approval:
        """Returns it as soon as it has an answer, or as it is then. A database that is away for a moment has no answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while approval.state is ApprovalState.WAITING:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_INTERVAL_S):
                            await changed.wait()
                    age_s = 0.0 if changed.is_set() else LOOK_AGE_S
                    changed.clear()
                    with suppress(OSError):
                        approval = await self._read(approval, age_s=age_s)
                        if approval.state is ApprovalState.EXPIRED:
                            await self._tell(approval.id)  # functions have nobody who keeps cards
        return approval

    async def _read(self, approval: Approval, *, age_s: float) -> Approval:
        """Returns it by a look that began `age_s` before this at the earliest, together with all that waits here: each by itself would ask the database twice a second. Raises: OSError."""
        loop = asyncio.get_running_loop()
        earliest_s = loop.time() - age_s
        async with self._looking:
            if self._looked_at_s < earliest_s:
                began_s, now = loop.time(), self._ports.clock.now()
                try:
                    if any(one.until <= now for one in self._waiting.values()):
                        await self._ports.approvals.close()
                    self._found = await self._ports.approvals.get_all(tuple(self._waiting))
                except OSError:
                    # For all that wait for the lock: it may have taken long to fail.
                    self._looked_at_s = loop.time()
                    raise
                self._looked_at_s = began_s
            return self._found.get(approval.id, approval)

    def _wake(self, approval_id: str) -> None:
        if waiting := self._waiting.get(approval_id):
            waiting.changed.set()

    async def _tell(self, approval_id: str) -> None:
        """Makes its card show what it is. Never raises: what was not shown now is by `keep`, at whichever process."""
        try:
            if not await self._ports.approvals.claim_telling(approval_id):
                return None
            is_shown = False
            while not is_shown:
                approval = await self._ports.approvals.get(approval_id)
                run = await self._ports.store.get(RunId(approval.run_id)) if approval else None
                if approval is None or run is None:
                    return None
                ts = None
                with suppress(TimeoutError):
                    async with asyncio.timeout(SHOW_TIMEOUT_S):
                        ts = await self._ports.replies.show_approval(run, approval)
                if ts is None:
                    return await self._ports.approvals.release_telling(approval_id)
                # Not all: somebody has pressed meanwhile.
                is_shown = await self._ports.approvals.tell(approval, card_ts=ts)
        except OSError as exc:
            _log.warning("approval.untold", approval=approval_id, reason=str(exc))


_WHY_NOT: Final = {
    Unanswered.UNKNOWN: "This waits for nobody any more.",
    Unanswered.OVER: "This has its answer already, or its time is over.",
    Unanswered.AGAIN: "You have said yes to this; it waits for somebody else's.",
}


def _text_of(press: Press, approval: Approval) -> str:
    """Returns what a person answers a question, as they saw it; empty for all else."""
    if press.option is not None and press.option < len(approval.options):
        return approval.options[press.option]
    return press.text


def why_not_answer(approval: Approval, press: Press, policy: RunPolicy) -> str:
    """Returns why a person's answer does not count, for them; empty when it does."""
    is_let_in = not press.is_external and may_stop(press.user, policy)
    if is_let_in and may_answer(approval, press.user, policy):
        ruling = policy.permissions.find(Right.APPROVE, user=press.user, channel=approval.channel)
        if ruling is None or ruling.is_allowed:
            return ""
        return f"You may not answer here{by_rule(ruling)}. Your press has changed nothing."
    return f"This is for {who_may_answer(approval)} to answer; your press has changed nothing."


def may_answer(approval: Approval, user: str, policy: RunPolicy) -> bool:
    """Whether the answer of a person counts who may use Orion."""
    by = approval.by
    return (
        CHANNEL in by
        or (ASKER in by and user == approval.asker)
        or (OPERATORS in by and user in policy.operators)
        or user in by
        or any(policy.permissions.is_in(user, one) for one in by)
    )


def who_may_answer(approval: Approval) -> str:
    """Returns it in words, without names."""
    people = "somebody whom the operator has named"
    return " or ".join(
        dict.fromkeys(
            _ROLE_WORDS.get(one) or (people if is_person(one) else f"somebody of {one}")
            for one in approval.by
        )
    )


_ROLE_WORDS: Final = {
    ASKER: "whoever asked the question",
    CHANNEL: "people of this workspace who may use me",
    OPERATORS: "an operator",
}


async def ask_for_own_key(attempt: Attempt, protocol: str) -> None:
    """Returns when a run may spend from its asker's own key for models of this protocol; empty = it does not.

    Raises:
        OrionError: NOT_ALLOWED or APPROVAL_EXPIRED.
        RunStoppedError: the run was stopped meanwhile.
    """
    if not protocol:
        return
    try:
        await attempt.until_approved(Deed(kind=DeedKind.OWN_KEY, target=protocol))
    except ExpiredError as exc:
        raise OrionError(ErrorCode.APPROVAL_EXPIRED, str(exc)) from exc
    except NotApprovedError as exc:
        raise OrionError(ErrorCode.NOT_ALLOWED, str(exc)) from exc

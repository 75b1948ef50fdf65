"""What waits for a person's answer, as it is kept: a row for each deed of a run that a rule asks for, and for each question of its agent."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from app.approvals.rules import DeedKind
from app.audit.records import AuditEntry


class ApprovalState(StrEnum):
    WAITING = "waiting"
    ALLOWED = "allowed"
    """Enough people have said yes, and it is not done yet; or a question has its answer, which the agent does not know yet."""
    USED = "used"
    """It was let through, once, whatever came of it; or the agent knows the answer."""
    DENIED = "denied"
    EXPIRED = "expired"
    """Not enough people have said yes in time."""
    WITHDRAWN = "withdrawn"
    """Its run ended before it was done."""


TELLING_S = 15.0
"""For so long nobody else brings a card up to date, when a process dies in the middle of that."""
MAX_WAITING_OF_RUN = 20
"""So many things of its agent's may wait at once for people: each has a card in the thread."""
TOLD_AT_ONCE = 200
"""So many cards are looked for at once that do not show what they are."""
OPEN_STATES: Collection[ApprovalState] = frozenset({ApprovalState.WAITING, ApprovalState.ALLOWED})
GIVEN_STATES: Collection[ApprovalState] = frozenset({ApprovalState.ALLOWED, ApprovalState.USED})


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAnswer:
    """One person's answer to an approval or a question."""

    user: str
    is_allowed: bool
    """Of a question: they have answered it, not left it to the agent."""
    at: datetime
    text: str = field(default="", repr=False)
    """Of a question."""
    is_for_thread: bool = False
    """The yes is for the thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    id: str
    run_id: str
    team: str
    channel: str
    thread_key: str
    thread_ts: str
    asker: str
    """Who asked the run's question."""
    kind: DeedKind
    target: str
    shown: str = field(repr=False)
    """The deed's arguments as people see them: masked, which the text that is hashed is not."""
    digest: str
    """`Deed.digest`: an answer is for exactly this."""
    number: int = 0
    """Of all that its run has asked for, from 1; 0 = it is not kept yet."""
    rule: str
    """`ApprovalRule.words` of the rule that asks; empty for a question."""
    by: tuple[str, ...]
    """Who may answer, as in `ApprovalRule`."""
    people: int
    options: tuple[str, ...] = field(default=(), repr=False)
    """Of a question: what may be chosen, as people see it."""
    otherwise: str = field(default="", repr=False)
    """Of a question: what the agent does without an answer, as people see it."""
    asked_at: datetime
    until: datetime
    """After that nobody's answer counts."""
    state: ApprovalState = ApprovalState.WAITING
    answers: tuple[ApprovalAnswer, ...] = ()
    is_for_thread: bool = False
    """The yes holds for whatever this rule asks for of the same target in the thread from now on."""
    ended_at: datetime | None = None
    """When it was allowed, denied, expired or withdrawn."""
    card_ts: str = ""
    """The message that shows it; empty = none stands for sure."""
    is_told: bool = False
    """That message shows all of this."""

    @property
    def is_orions(self) -> bool:
        """Whether it is a step of Orion's own, of which a run has one, and not its agent's."""
        return self.kind in (DeedKind.PULL_REQUEST, DeedKind.OWN_KEY)

    @property
    def is_once(self) -> bool:
        """Whether a yes is for one deed; else it, or an answer, is for the rest of its run."""
        return self.kind not in (DeedKind.HOST, DeedKind.OWN_KEY, DeedKind.QUESTION)


class TooManyWaitingError(Exception):
    """`MAX_WAITING_OF_RUN` things of a run's agent wait for people already."""


class Unanswered(StrEnum):
    """Why a press changes nothing."""

    UNKNOWN = "unknown"
    OVER = "over"
    """It has its answer, or its time is over."""
    AGAIN = "again"
    """The same person has said yes before."""


class ApprovalStore(Protocol):
    """Rows of what waits. Every method is durable when it returns, one answer for all processes, and safe to repeat.

    Raises OSError where the database does not answer.
    """

    async def ask(self, approval: Approval, *, attempt: int | None = None) -> Approval:
        """Inserts a row with the next number of its run; or returns the one by which the run has asked for the same deed already, unless that was used, and for once.

        `attempt`: of the run, which asks; None = whichever.

        Raises:
            LeaseLostError: nothing was inserted, as the run has begun another attempt meanwhile: what asks belongs to one that was given up.
            TooManyWaitingError: nothing was inserted.
        """
        ...

    async def get(self, approval_id: str) -> Approval | None: ...

    async def get_all(self, approval_ids: Collection[str]) -> Mapping[str, Approval]:
        """Returns those of them that there are, by their ids."""
        ...

    async def answer(
        self,
        approval_id: str,
        answer: ApprovalAnswer,
        *,
        is_for_thread: bool,
        entry: AuditEntry | None = None,
    ) -> Approval | Unanswered:
        """Counts a person's answer, while it waits and its time is not over by the database's clock, and keeps `entry` with it; the row as it is then.

        One no is enough; yes are counted by people.
        """
        ...

    async def use(self, approval_id: str) -> bool:
        """Lets an allowed one through: True once, to whoever comes first."""
        ...

    async def is_allowed_in(self, thread_key: str, *, asker: str, rule: str, target: str) -> bool:
        """Whether somebody has allowed this rule's target for what a person asks in that thread."""
        ...

    async def claim_telling(self, approval_id: str) -> bool:
        """Whether the caller is the one to bring its card up to date, for `TELLING_S` at most."""
        ...

    async def release_telling(self, approval_id: str) -> None:
        """Lets somebody else bring it up to date: it could not be shown."""
        ...

    async def tell(self, approval: Approval, *, card_ts: str) -> bool:
        """Records that this message shows it as it is in `approval`; whether that is all there is to show by now."""
        ...

    async def close(self) -> Sequence[Approval]:
        """Ends those whose time is over, and those whose runs are; returns those whose card does not show what they are, the oldest first; `TOLD_AT_ONCE` at most."""
        ...

    async def waiting(self, team: str) -> Sequence[Approval]:
        """Returns what waits in a team, the oldest first: hardly more than `MAX_WAITING_OF_RUN` of each run that goes."""
        ...

    async def of_run(self, run_id: str) -> Sequence[Approval]:
        """Returns all that a run has asked for, in order."""
        ...

    async def count(self, decided: Mapping[str, int]) -> None:
        """Adds to how often rules have decided, by their words."""
        ...

    async def hits(self) -> Mapping[str, int]:
        """Returns how often each rule has decided, by its words."""
        ...

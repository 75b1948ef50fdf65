"""A run whose agent wants a yes, or an answer, and the desk that asks for it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from app.aio import TaskGroup, open_task_group
from app.approvals.records import (
    Approval,
)
from app.approvals.rules import (
    ApprovalRule,
    ApprovalRules,
    Decision,
    Deed,
    DeedKind,
)
from app.runs.testing import (
    ApprovalDesk,
    NotApprovedError,
    Press,
    Run,
    RunPolicy,
    RunPorts,
    RunState,
)
from tests.building import make_run
from tests.faults.building import POLICY, JournalReplies, core_of
from tests.waiting import until

DEED = Deed(kind=DeedKind.TOOL, target="linear.create_issue", arguments={"title": "hunter2 leaks"})
LOCAL_S = 0.4
"""How long a request is held here."""


def asks(**changes: Any) -> ApprovalRule:
    rule = ApprovalRule(kind=DeedKind.TOOL, pattern="linear.*", decision=Decision.ASK)
    return replace(rule, **changes)


@dataclass
class Scene:
    desk: ApprovalDesk
    replies: JournalReplies
    run: Run
    store: Any
    group: TaskGroup
    ports: RunPorts
    dispatcher: Any
    policy: RunPolicy
    noted: list[str] = field(default_factory=list)
    may_act: bool = True

    def use(self, approvals: Any) -> None:
        """Has another desk, with this store."""
        self.desk = ApprovalDesk(
            replace(self.ports, approvals=approvals),
            dispatcher=self.dispatcher,
            policy=self.policy,
            hold_s=20,
        )

    async def before(self) -> bool:
        self.noted.append("noted")
        return self.may_act

    async def approve(self, deed: Deed = DEED) -> None:
        await self.desk.approve(self.run.id, deed, self.before)

    async def approved(self, deed: Deed = DEED) -> str:
        """How it ends: empty = it may be done."""
        try:
            await self.approve(deed)
        except NotApprovedError as exc:
            return str(exc)
        return ""

    async def card(self, number: int = 1) -> Approval:
        await until(lambda: any(one.number == number for one in self.replies.cards))
        rows: list[Approval] = list(await self.store.approvals.of_run(self.run.id))
        return rows[number - 1]

    async def press(self, user: str, *, number: int = 1, says: bool = True, **more: Any) -> str:
        row = await self.card(number)
        return await self.desk.press(Press(approval_id=row.id, user=user, is_allowed=says, **more))


@asynccontextmanager
async def scene_of(
    tmp_path: Path, *rules: ApprovalRule, hold_s: float = 20, **policy: Any
) -> AsyncIterator[Scene]:
    own = replace(POLICY, approvals=ApprovalRules(general=rules or (asks(),)), **policy)
    async with core_of(tmp_path, own) as core:
        run = replace(make_run(), state=RunState.RUNNING, reply_ts="9.0")
        await core.store.add(run)
        desk = ApprovalDesk(core.ports, dispatcher=core.dispatcher, policy=own, hold_s=hold_s)
        async with open_task_group() as group:
            yield Scene(
                desk, core.replies, run, core.store, group, core.ports, core.dispatcher, own
            )

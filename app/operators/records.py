"""What operators are told of runs and of money, on the command line and on their page."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from app.approvals.records import Approval
from app.approvals.rules import DeedKind
from app.runs.budget import render_money
from app.runs.model import Run, SharedFile
from app.runs.ports import RunCost
from app.runs.request import AttachedFile
from app.tracing.steps import StepRecord


def as_row(
    run: Run, asked: Sequence[Approval] = (), steps: Sequence[StepRecord] = ()
) -> Mapping[str, object]:
    """Returns what operators see of a run; no content. `asked`: what it has needed people for."""
    seconds = (
        (run.ended_at - run.started_at).total_seconds() if run.ended_at and run.started_at else None
    )
    return {
        "id": run.id,
        "state": run.state,
        "code": run.result.error_code,
        "detail": run.result.detail,
        "thread": run.thread.key,
        "user": run.request.user,
        "message_ts": run.request.message_ts,
        "reply_ts": run.reply_ts,
        "agent": run.agent,
        "model": run.model,
        "provider": run.provider,
        "sandbox_id": run.sandbox_id,
        "attempt": run.attempt,
        "resumed": run.result.resumed,
        "retry_of": run.request.retry_of,
        "created_at": run.created_at.isoformat(),
        **run.result.measures,
        "duration_s": seconds,  # until it was told; the measured one ends with the attempt
        "delivery": run.delivery,
        "changes": asdict(run.result.changes) if run.result.changes else None,
        "files_in": _files(run.request.content.files),
        "files_out": _files(run.result.files),
        "hosts": [asdict(one) for one in run.result.hosts],
        "settings": [asdict(one) for one in run.effective or ()],
        "trace": [
            {
                "name": one.name,
                "parent": one.parent,
                "started_at": one.started_at.isoformat(),
                "duration_s": round(one.duration_s, 3),
                "error": one.error,
            }
            for one in sorted(steps, key=lambda one: one.started_at)
        ],
        "asked": [
            {
                "kind": one.kind,
                "target": "" if one.kind is DeedKind.QUESTION else one.target,
                "rule": one.rule,
                "state": one.state,
                "by": [answer.user for answer in one.answers],
            }
            for one in asked
        ],
        "stopped_by": run.stop_requested_by,
        "input_tokens": run.result.usage.input_tokens,
        "output_tokens": run.result.usage.output_tokens,
        "cached_tokens": run.result.usage.cache_read_tokens
        + run.result.usage.cache_creation_tokens,
        "model_calls": run.result.usage.model_calls,
        "outside_effect": run.has_outside_effect,
        "trace_id": run.trace_id,
    }


def _files(files: Sequence[AttachedFile | SharedFile]) -> Sequence[Mapping[str, object]]:
    return [{"name": one.name, "bytes": one.size} for one in files]


class By(StrEnum):
    DAY = "day"
    USER = "user"
    CHANNEL = "channel"
    AGENT = "agent"
    MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """The cost of several runs together: those of one day, person, channel, agent or model."""

    name: str
    runs: int
    tokens: int
    cost: int | None
    """Micro-dollars, of the runs whose cost is known; None = there is none."""
    unknown: int
    """Runs whose cost is not."""

    @property
    def row(self) -> Mapping[str, object]:
        return {
            "name": self.name,
            "runs": self.runs,
            "tokens": self.tokens,
            "cost_micro_usd": self.cost,
            "runs_of_unknown_cost": self.unknown,
        }

    @property
    def line(self) -> str:
        money = "unknown" if self.cost is None else render_money(self.cost)
        is_mixed = self.unknown and self.cost is not None
        unknown = f"  and {self.unknown} of unknown cost" if is_mixed else ""
        return f"{self.name:26} {self.runs:7} runs {self.tokens:14,} tokens  {money:>10}{unknown}"


def add_up(costs: Iterable[RunCost], *, by: By) -> Sequence[Sum]:
    """Returns sums by that name; the dearest first."""
    groups: dict[str, list[RunCost]] = {}
    for one in costs:
        name = f"{one.at:%Y-%m-%d}" if by is By.DAY else getattr(one, by)
        groups.setdefault(name, []).append(one)
    sums = [_sum_of(name, group) for name, group in groups.items()]
    return sorted(sums, key=lambda one: (-(one.cost or 0), -one.tokens, one.name))


def _sum_of(name: str, group: Sequence[RunCost]) -> Sum:
    known = [one.cost for one in group if one.cost is not None]
    return Sum(
        name=name or "unknown",
        runs=len(group),
        tokens=sum(one.tokens for one in group),
        cost=sum(known) if known else None,
        unknown=len(group) - len(known),
    )

"""Every call of a port is a point at which the service may be killed, before it and after it; no step has to name itself.

A wrapper stands around each adapter that the composition root makes. It writes down each point that is passed, and when the
point is the one that the harness armed, it ends its own process group with SIGKILL, as the kernel would (nothing is raised,
nothing is cleaned up), or stops its own process with SIGSTOP, or waits there until its database is away.
"""

import asyncio
import inspect
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import structlog
from typing_extensions import override

from app.runs.testing import Run, RunRequest
from sandbox_runtime.types import SandboxSpec

PartT = TypeVar("PartT")
Side = Literal["before", "after"]
Harm = Literal["kill", "freeze", "cut"]

CUT_WITHIN_S = 5.0
MADE_BY = {"create": "sandbox", "attach": "sandbox", "spawn": "process"}
"""Methods whose result is a part of its own, by that part's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One moment of a run, as it is armed and as it is written down."""

    step: str
    """Port and method, with the state for a change of the record: `store.update[running]`."""
    side: Side
    whose: str = ""
    """`first` or `later`: the place of the run's message in its thread; empty when it is of no run, or of any."""
    number: int = 1
    """The n-th time."""

    @override
    def __str__(self) -> str:
        whose = f", {self.whose} message" if self.whose else ""
        number = f" #{self.number}" if self.number > 1 else ""
        return f"{self.side} {self.step}{number}{whose}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the harness asks for: that the first process at a point comes to harm there (its database, for `cut`), or (`hold`) that each waits there until killed from outside."""

    point: Point
    harm: Harm = "kill"
    hold: bool = False
    spared: tuple[str, ...] = ()
    """Runs at which it does not count."""


class Mailbox:
    """The directory through which harness and service talk: an order in, the points passed and the victim out."""

    def __init__(self, directory: Path) -> None:
        self._order = directory / "order.json"
        self._victim = directory / "victim.json"
        self._passed = directory / "passed.jsonl"
        self._runs = directory / "runs"
        self._cut = directory / "cut"

    def know(self, run_id: str, whose: str) -> None:
        """Has all processes know whose a run is: the one that is asked to stop it need not have seen it."""
        self._runs.mkdir(exist_ok=True)
        (self._runs / run_id).write_text(whose)

    def whose(self, run_id: str) -> str:
        try:
            return (self._runs / run_id).read_text()
        except FileNotFoundError:
            return ""

    def arm(self, order: Order, *, record: bool = False) -> None:
        self.disarm()
        if record:
            self._passed.touch()
        draft = self._order.with_suffix(".new")
        draft.write_text(json.dumps(asdict(order)))
        draft.rename(self._order)

    def record(self) -> None:
        """Begin to write down what is passed."""
        self.disarm()
        self._passed.touch()

    def disarm(self) -> None:
        for path in (self._order, self._victim, self._passed, self._cut):
            path.unlink(missing_ok=True)

    def tell_cut(self) -> None:
        """The database is away: who waits for that goes on."""
        self._cut.touch()

    def wait_for_cut(self) -> None:
        """Holds the whole process, for 5 s at the most."""
        until_s = time.monotonic() + CUT_WITHIN_S
        while not self._cut.exists() and time.monotonic() < until_s:
            time.sleep(0.005)

    def order(self) -> Order | None:
        try:
            found = json.loads(self._order.read_text())
        except FileNotFoundError:
            return None
        point, spared = Point(**found.pop("point")), tuple(found.pop("spared"))
        return Order(point=point, spared=spared, **found)

    def victims(self) -> list[Mapping[str, Any]]:
        """Pid, and run id or None, of the process that reached the armed point; with `hold` one for each run."""
        try:
            return [json.loads(line) for line in self._victim.read_text().splitlines()]
        except FileNotFoundError:
            return []

    def tell(self, run_id: str | None, *, is_one_of_many: bool = False) -> bool:
        """False: another process was there before, and there shall be one only."""
        try:
            with self._victim.open("a" if is_one_of_many else "x") as file:
                file.write(json.dumps({"pid": os.getpid(), "run_id": run_id}) + "\n")
        except FileExistsError:
            return False
        return True

    def note(self, point: Point) -> None:
        if self._passed.exists():
            with self._passed.open("a") as file:
                file.write(json.dumps(asdict(point)) + "\n")

    def passed(self) -> list[Point]:
        return [Point(**json.loads(line)) for line in self._passed.read_text().splitlines()]


class Tripwire:
    """Decides at each point whether the process goes on."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._order: Order | None = None
        self._count = 0
        self._whose: dict[str, str] = {}

    def learn(self, value: object) -> None:
        """Remember which run is the first of its thread."""
        found = value if isinstance(value, list | tuple) else [value]
        for one in found:
            request = one.request if isinstance(one, Run) else one
            if isinstance(request, RunRequest):
                whose = "first" if request.thread_ts == request.message_ts else "later"
                if self._whose.get(request.run_id) != whose:
                    self._whose[request.run_id] = whose
                    self._mailbox.know(request.run_id, whose)

    def passes(self, step: str, side: Side, run_id: str | None) -> bool:
        """False when the caller shall wait to be killed. Where it is killed this does not return; where it is frozen, once it is let go on."""
        whose = self._whose.get(run_id or "", "")
        if run_id and not whose:
            whose = self._mailbox.whose(run_id)
        order = self._mailbox.order()
        self._mailbox.note(Point(step=step, side=side, whose=whose))
        if order != self._order:
            self._order, self._count = order, 0
        if order is None or run_id in order.spared:
            return True
        wanted = order.point
        if (step, side) != (wanted.step, wanted.side) or wanted.whose not in ("", whose):
            return True
        self._count += 1
        if self._count < wanted.number:
            return True
        if order.hold:
            self._mailbox.tell(run_id, is_one_of_many=True)
            return False
        if self._mailbox.tell(run_id):
            self._come_to(order.harm)
        return True

    def _come_to(self, harm: Harm) -> None:
        match harm:
            case "kill":
                os.killpg(0, signal.SIGKILL)
            case "freeze":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "cut":
                self._mailbox.wait_for_cut()


class Watched:
    """Stands around one part. Methods that wait are points; all else goes straight through."""

    def __init__(self, name: str, part: Any, wire: Tripwire, *, run_id: str | None = None) -> None:
        self._name = name
        self._part = part
        self._wire = wire
        self._run_id = run_id

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(self._part, attribute)
        if attribute.startswith("_") or not callable(value):
            return value
        if inspect.iscoroutinefunction(value):
            return lambda *given, **named: self._call(attribute, value, given, named)
        return lambda *given, **named: self._enter(attribute, value, given, named)

    async def __aenter__(self) -> Any:
        entered = await self._call("enter", self._part.__aenter__, (), {})
        return self if entered is self._part else entered

    async def __aexit__(self, *exc_info: object) -> Any:
        return await self._call("leave", self._part.__aexit__, exc_info, {})

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Each item is a point."""
        async for item in self._part:
            await self._pass("item", "before", self._run_id)
            yield item

    async def _call(
        self,
        method: str,
        function: Callable[..., Any],
        given: tuple[Any, ...],
        named: Mapping[str, Any],
    ) -> Any:
        run_id = self._run_of(given)
        step = _step(method, named)
        await self._pass(step, "before", run_id)
        result = await function(*given, **named)
        self._wire.learn(result)
        await self._pass(step, "after", run_id)
        if method in MADE_BY:
            return Watched(MADE_BY[method], result, self._wire, run_id=run_id)
        return result

    def _enter(
        self,
        method: str,
        function: Callable[..., Any],
        given: tuple[Any, ...],
        named: Mapping[str, Any],
    ) -> Any:
        """What a plain method gives back is watched when it is entered or iterated with waiting."""
        result = function(*given, **named)
        if hasattr(result, "__aenter__") or hasattr(result, "__aiter__"):
            run_id = self._run_of(given)
            return Watched(f"{self._name}.{method}", result, self._wire, run_id=run_id)
        return result

    async def _pass(self, step: str, side: Side, run_id: str | None) -> None:
        if not self._wire.passes(f"{self._name}.{step}", side, run_id):
            await _for_ever()

    def _run_of(self, given: tuple[Any, ...]) -> str | None:
        """The run that a call is about: named by its first argument, or by the context of the log."""
        subject = given[0] if given else None
        self._wire.learn(subject)
        match subject:
            case Run():
                return subject.id
            case RunRequest():
                return subject.run_id
            case SandboxSpec():
                return subject.labels.get("orion.run")
            case str() if subject.startswith("run_"):
                return subject
            case _:
                known = structlog.contextvars.get_contextvars().get("run_id")
                return self._run_id or cast("str | None", known)


def _step(method: str, named: Mapping[str, Any]) -> str:
    if method == "update":
        # Changes of one state: what else they bring tells them apart.
        outcome = named.get("outcome")
        state = named.get("state") or (outcome and outcome.state) or named.get("status")
        return f"update[{state or ' '.join(sorted(named))}]"
    return method


async def _for_ever() -> None:
    await asyncio.Event().wait()


class WatchAll:
    """The composition root's `wrap`."""

    def __init__(self, wire: Tripwire) -> None:
        self._wire = wire

    def __call__(self, port: str, part: PartT, /) -> PartT:
        return cast("PartT", Watched(port, part, self._wire))

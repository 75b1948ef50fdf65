"""What can be made to go wrong at each endpoint of the emulator."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["answer", "lost", "broken", "slow", "cut", "silent"]
"""`answer`: this instead, and nothing is done. `lost`: the connection breaks before anything is done; `broken`: after it was
done. `slow`: later. For streams: `cut` after some bytes, `silent` after some bytes.
"""
ENDPOINTS = (
    "create",
    "get",
    "list",
    "update",
    "destroy",
    "sessions",
    "session",
    "stop",
    "extend",
    "policy",
    "snapshot",
    "snapshots",
    "get_snapshot",
    "delete_snapshot",
    "run",
    "start",
    "command",
    "logs",
    "kill",
    "stdin",
    "write",
    "read",
    "mkdir",
)


@dataclass(slots=True, kw_only=True)
class Fault:
    """Comes `times` times, then no more."""

    endpoint: str
    kind: Kind
    times: int = 1
    status: int = 500
    code: str = "internal_error"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
    """Instead of the error as JSON."""
    after_bytes: int = 0
    delay_s: float = 0.0
    skip: int = 0
    """Requests to that endpoint that pass before it."""


def failing(endpoint: str, status: int, code: str = "failed", **more: Any) -> Fault:
    """An error answer."""
    return Fault(endpoint=endpoint, kind="answer", status=status, code=code, **more)


def talking_nonsense(endpoint: str, *, html: bool = True, **more: Any) -> Fault:
    """An answer that is no JSON, with a status of success."""
    body = "<!doctype html><html><body>Sign in</body></html>" if html else '{"sandbox": {'
    kind = "text/html" if html else "application/json"
    return Fault(
        endpoint=endpoint,
        kind="answer",
        status=200,
        body=body,
        headers={"content-type": kind},
        **more,
    )


class Faults:
    """Those that are set, in order."""

    def __init__(self) -> None:
        self._set: list[Fault] = []
        self.seen: list[str] = []
        """Endpoints at which one came."""

    def add(self, *faults: Fault) -> None:
        for fault in faults:
            assert fault.endpoint in ENDPOINTS
        self._set += faults

    def stop(self) -> None:
        """None comes any more."""
        self._set.clear()

    def clear(self) -> None:
        """As at the beginning."""
        self.stop()
        self.seen.clear()

    def take(self, endpoint: str) -> Fault | None:
        """The one that this request meets."""
        for fault in self._set:
            if fault.endpoint != endpoint or fault.times <= 0:
                continue
            if fault.skip > 0:
                fault.skip -= 1
                continue
            fault.times -= 1
            self.seen.append(endpoint)
            return fault
        return None


async def never() -> None:
    """A connection that carries nothing any more, for longer than any test waits."""
    await asyncio.sleep(600)

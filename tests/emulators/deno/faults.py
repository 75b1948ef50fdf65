"""What can be made to go wrong at each endpoint of the emulator."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    RATE_LIMIT = "429"
    FAIL = "500"
    FAIL_AFTER = "500-after"
    """It is done, and 500 is said."""
    UNAUTHORIZED = "401"
    MISSING = "404"
    HTML = "html"
    """A page of something in between, with status 200."""
    GARBAGE = "garbage"
    """JSON of another form."""
    CUT = "cut"
    """The connection ends in place of an answer."""
    CUT_AFTER = "cut-after"
    """It is done, and the connection ends."""
    SLOW = "slow"
    """The answer takes `seconds`."""
    SILENT = "silent"
    """No answer ever, not to a ping either."""


@dataclass(slots=True, kw_only=True)
class Fault:
    endpoint: str
    """`METHOD /path` with `*` for what varies, or the name of a method of the socket."""
    kind: Kind
    times: int = 1
    skip: int = 0
    """Requests that pass before."""
    seconds: float = 0.5


class Faults:
    """Switched by a test."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self.fired: list[tuple[str, Kind]] = []

    def add(
        self, endpoint: str, kind: Kind, *, times: int = 1, skip: int = 0, seconds: float = 0.5
    ) -> None:
        self._faults.append(
            Fault(endpoint=endpoint, kind=kind, times=times, skip=skip, seconds=seconds)
        )

    def clear(self) -> None:
        self._faults.clear()

    def take(self, endpoint: str) -> Fault | None:
        """The one that hits this request."""
        for fault in self._faults:
            if fault.endpoint != endpoint or fault.times == 0:
                continue
            if fault.skip:
                fault.skip -= 1
                continue
            fault.times -= 1
            self.fired.append((endpoint, fault.kind))
            return fault
        return None

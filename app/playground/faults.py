"""What a test makes go wrong, and how often."""

from dataclasses import dataclass
from http import HTTPStatus

from app.playground.slack_types import SlackError


@dataclass(slots=True, kw_only=True)
class Fault:
    method: str = "*"
    """A Web API method, or `*` for every one."""
    times: int = 1
    skip: int = 0
    """Calls let through before the fault starts."""
    status: int | None = None
    error: str | None = None
    retry_after: int | None = None
    drop_after_accept: bool = False
    """The call takes effect, but the connection is cut before the answer."""
    drop_before_accept: bool = False
    """The connection is cut and nothing took effect."""
    delay_s: float = 0.0
    """Before the call takes effect."""
    answer_after_s: float = 0.0
    """The call takes effect at once, its answer comes this much later."""
    is_html: bool = False
    """The refusal is a page of a gateway instead of Slack's JSON."""

    def raise_refusal(self) -> None:
        """The answer in place of the method's own, if this fault has one."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.status == HTTPStatus.TOO_MANY_REQUESTS:
            raise SlackError("ratelimited", status=429, headers={"Retry-After": "1", **headers})
        if self.status is not None:
            raise SlackError(self.error or "internal_error", status=self.status, headers=headers)
        if self.error:
            raise SlackError(self.error)


class Faults:
    def __init__(self) -> None:
        self._planned: list[Fault] = []
        self.outage = False
        """Slack is down: every call answers 503 and no event is sent."""
        self.token_revoked = False

    def plan(self, fault: Fault) -> None:
        self._planned.append(fault)

    def clear(self) -> None:
        self._planned.clear()
        self.outage = self.token_revoked = False

    def take(self, method: str) -> Fault | None:
        """The fault that this call meets, counted down."""
        for fault in self._planned:
            if fault.method not in {"*", method}:
                continue
            if fault.skip > 0:
                fault.skip -= 1
                return None
            fault.times -= 1
            if fault.times <= 0:
                self._planned.remove(fault)
            return fault
        return None

"""What one run reached by the proxy, and what it reached for in vain, by host."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

MAX_USES: Final = 100
"""The most uses of a run that are told one by one: whoever asks for more names is told as the last."""
OTHERS: Final = "others"
NOT_LISTED: Final = "is not on the list of hosts"
NOT_PUBLIC: Final = "leads to an address that is not public"
MAX_TOLD_HOSTS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUse:
    """Sums up the connections of a run that came to one host and port, or those that did not, for one reason."""

    host: str
    """`name:port`; `OTHERS` for all above `MAX_USES`; empty where a client did not say it in a form that is read."""
    connections: int = 0
    """That came to the host."""
    seconds: float = 0.0
    """For which they were open, together."""
    sent_bytes: int = 0
    received_bytes: int = 0
    refusals: int = 0
    """Connections that did not come to it."""
    reason: str = ""
    """Why; empty for those that did, and for `OTHERS`."""


class Tally:
    """Adds up the uses of one run."""

    def __init__(self, earlier: Iterable[HostUse] = ()) -> None:
        """`earlier`: of the run's slices before this one."""
        self._uses = {(one.host, one.reason): one for one in earlier}
        self.sent_bytes = sum(one.sent_bytes for one in self._uses.values())
        """To all hosts."""
        self.received_bytes = sum(one.received_bytes for one in self._uses.values())
        self.open_connections = 0

    @property
    def uses(self) -> tuple[HostUse, ...]:
        """Returns all uses in the order in which their hosts were asked for first."""
        return tuple(self._uses.values())

    @property
    def refused(self) -> Sequence[HostUse]:
        """Returns those that were refused, of hosts that were never reached."""
        reached = {one.host for one in self._uses.values() if one.connections}
        return [one for one in self._uses.values() if one.refusals and one.host not in reached]

    @contextmanager
    def connected(self, host: str) -> Iterator[None]:
        """Counts a connection that has come to its host, and for how long it is open."""
        began_s = time.monotonic()
        use = self._of(host)
        self._keep(replace(use, connections=use.connections + 1))
        try:
            yield
        finally:
            use = self._of(host)
            self._keep(replace(use, seconds=use.seconds + time.monotonic() - began_s))

    def move(self, host: str, *, sent_bytes: int = 0, received_bytes: int = 0) -> None:
        """Adds bytes that passed."""
        use = self._of(host)
        self.sent_bytes += sent_bytes
        self.received_bytes += received_bytes
        self._keep(
            replace(
                use,
                sent_bytes=use.sent_bytes + sent_bytes,
                received_bytes=use.received_bytes + received_bytes,
            )
        )

    def refuse(self, host: str, reason: str) -> int:
        """Counts a connection that does not come to its host; returns how many of the run did not."""
        use = self._of(host, reason)
        self._keep(replace(use, refusals=use.refusals + 1))
        return sum(one.refusals for one in self._uses.values())

    def _of(self, host: str, reason: str = "") -> HostUse:
        if (host, reason) not in self._uses and len(self._uses) >= MAX_USES:
            host, reason = OTHERS, ""
        return self._uses.get((host, reason), HostUse(host=host, reason=reason))

    def _keep(self, use: HostUse) -> None:
        self._uses[use.host, use.reason] = use


def render_refused(tally: Tally) -> str:
    """Returns what the sandbox reached for in vain, and what can be done, for the person who asked; empty where that is nothing."""
    refused = tally.refused
    if not refused:
        return ""
    nameless = sum(one.refusals for one in refused if not one.host)
    named = [one for one in refused if one.host]
    told = []
    if nameless:
        told.append(
            f"{nameless} requests that name no host"
            if nameless > 1
            else "a request that names no host"
        )
    told += [_describe_refused(one) for one in named[:MAX_TOLD_HOSTS]]
    if len(named) > MAX_TOLD_HOSTS:
        told.append(f"{len(named) - MAX_TOLD_HOSTS} more")
    note = f"Reached for and refused: {'; '.join(told)}."
    reasons = {one.reason for one in refused}
    if NOT_LISTED in reasons:
        note += (
            " The operator can allow hosts: ORION_EGRESS_HOSTS, or `egress_hosts` in orion.toml."
        )
    if NOT_PUBLIC in reasons:
        note += " A host of your own network stands there as `private:` and its name."
    return note


def _describe_refused(use: HostUse) -> str:
    times = f" ({use.refusals} times)" if use.refusals > 1 else ""
    return f"`{use.host}`{times}" + (f", which {use.reason}" if use.reason != NOT_LISTED else "")

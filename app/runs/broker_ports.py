"""What the core needs from the broker, and from a host of code, as Protocols: see `ports`."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from app.runs.model import ModelCall, RunId
from app.runs.session import SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryGrant:
    """What a run may do with git: read one repository, write one branch of it."""

    url: str
    """Where it really is, without credentials."""
    branch: str
    """The thread's own; empty = none may be written yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGrant:
    """What a run may ask of the models, and of git."""

    run_id: RunId
    models: tuple[str, ...]
    expires_at: datetime
    max_output_tokens: int = 8192
    """Per call."""
    max_calls: int = 1000
    """Of the whole run, repeated ones included."""
    session_id: str = ""
    """Of the run's thread; at the endpoint of another one the token is refused."""
    repository: RepositoryGrant | None = None
    own_key: str = field(default="", repr=False)
    """Of the person who asked, to be used in place of the operator's; empty = there is none."""
    own_key_protocol: str = ""
    """That it is for; models of other protocols must not be asked beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerEndpoint:
    """How a sandbox reaches the model."""

    address: str
    """Absolute path of a unix socket, or a URL."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What the sandbox's network must add to each request: keys."""
    model_url: str = "{relay}/broker/{protocol}"
    """See `AgentTurn.model_url`; `{protocol}` stands for the agent's `ModelProtocol`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A pull request to open."""

    url: str
    """Of the repository, without credentials."""
    branch: str
    base: str
    title: str
    body: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied:
    """Why a model call must not be made now."""

    reason: str
    may_pass: bool = False
    """It may be asked again, when those in flight have ended."""


AskLeave = Callable[[str, int], Denied | None]
"""Told the model and about how many tokens it would read; None = the call may be made, and is in flight until it has been counted."""


class NothingToProposeError(Exception):
    """The base has all that the branch has."""


class CodeHost(Protocol):
    """Where pull requests are opened."""

    async def open_pull_request(self, proposal: Proposal) -> str:
        """Its link, or that of the one that is open for the branch; empty when the repository is on no host that has them.

        Bounded to a minute, safe to repeat.

        Raises:
            ConnectionError: it could not be opened; the message says why and holds no secret.
            NothingToProposeError
        """
        ...


class ModelBroker(Protocol):
    """Keeps provider keys outside sandboxes."""

    def endpoint_for(self, session_id: SessionId) -> BrokerEndpoint:
        """What the thread's sandbox is given; the directory of a socket is there until `close`."""
        ...

    def open_grant(
        self,
        grant: ModelGrant,
        on_call: Callable[[ModelCall], None],
        on_effect: Callable[[], Awaitable[None]] | None = None,
        refusal: AskLeave | None = None,
    ) -> AbstractAsyncContextManager[str]:
        """A run token, good while inside (and never after `expires_at`), and a listener at the thread's endpoint.

        `on_call` hears of each model call that has ended, and of what was refused to the thread's sandbox. `on_effect` is
        awaited before the first request that may change something outside is let through; without it none is. `refusal` is
        asked before each model call.
        """
        ...

    def adopt(self, session_id: SessionId, door: SessionId) -> None:
        """The endpoint that a sandbox was given for `door` is from now on the thread's, whose own goes; so is its end."""
        ...

    def close(self, session_id: SessionId) -> None:
        """The thread's sandbox is gone, or will be without another run: its endpoint is not needed. May be repeated."""
        ...

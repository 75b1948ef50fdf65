"""What a run's sandbox is let do at the broker, which keeps keys outside, and how it gets there."""

import base64
import hashlib
import hmac
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from agent_scripts.cli_output import code_of_status
from agent_scripts.events import AgentErrorCode
from app.accounts.records import Owner
from app.aio import Gate, always_open
from app.approvals.questions import Question
from app.approvals.records import ApprovalState
from app.approvals.rules import Deed, DeedKind
from app.egress.hosts import HostEntry
from app.egress.tally import Tally
from app.runs.budget import AskLeave
from app.runs.model import ModelCall
from app.runs.request import RunId
from app.runs.session import SessionId
from sandbox_runtime.types import BrokeredNetwork, Network, OpenNetwork

RUN_PREFIX = "sk-ant-orion-"
"""Shaped like the key it stands for: some SDKs look at the shape, and maskers know it."""
GIT_PREFIX = f"{RUN_PREFIX}git-"
MAC_BYTES = 32
_PURPOSE = b"git"


def git_token(run_token: str) -> str:
    """Returns the token for git of a run: whoever has it cannot make the run token of it, and asks no model. Text of another form stays as it is."""
    try:
        raw = decode(run_token.removeprefix(RUN_PREFIX))
    except ValueError:
        return run_token
    return GIT_PREFIX + encode(git_mac(raw[:MAC_BYTES]) + raw[MAC_BYTES:])


def git_mac(run_mac: bytes) -> bytes:
    """Returns the code of the token for git, made of the run token's one way."""
    return hmac.new(run_mac, _PURPOSE, hashlib.sha256).digest()


def encode(raw: bytes) -> str:
    """Returns text that fits in a header."""
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def decode(text: str) -> bytes:
    """Raises: ValueError."""
    encoded = text.encode("ascii")
    return base64.urlsafe_b64decode(encoded + b"=" * (-len(encoded) % 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryGrant:
    """Says what a run may do with git: read one repository, write one branch of it."""

    url: str
    """Where it really is, without credentials."""
    branch: str
    """The thread's own; empty = none may be written yet."""
    acting_for: Owner | None = None
    """In whose name; None = the deployment's own."""


def push_deed(repository: RepositoryGrant, commit: str) -> Deed:
    """Returns what rules say of a push: that of this commit, and all before it, to the thread's branch."""
    arguments = {"branch": repository.branch, "commit": commit}
    return Deed(kind=DeedKind.PUSH, target=slug_of(repository.url), arguments=arguments)


def slug_of(url: str) -> str:
    """Returns the URL without scheme, `.git` and trailing slashes, so that two spellings of one repository are equal."""
    return url.rpartition("://")[2].rstrip("/").removesuffix(".git")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGrant:
    """Says what a run may ask of the models, and of git."""

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
    hosts: tuple[HostEntry, ...] = ()
    """That its sandbox reaches by the proxy at its thread's endpoint."""
    asker: Owner | None = None
    """Who asked, as whom MCP servers are asked that want to know; None = nobody's run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerEndpoint:
    """Says how a sandbox reaches the model."""

    address: str
    """Absolute path of a unix socket, or a URL."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What the sandbox's network must add to each request: keys."""
    has_broker: bool = True
    """False: the address is the model's own, and nothing else is reached."""

    def network(self, hosts: Iterable[HostEntry], *, is_open: bool) -> Network:
        """Returns the network of a sandbox that reaches it, and beside it these hosts, or everything.

        By a socket hosts are the proxy's matter, which knows those of each run whichever sandbox it has.
        """
        if is_open:
            return OpenNetwork(endpoint=self.address)
        hosts = () if self.address.startswith("/") else hosts
        return BrokeredNetwork(
            endpoint=self.address,
            headers=self.headers,
            hosts=tuple(dict.fromkeys(entry.pattern for entry in hosts)),
        )

    def url(self, protocol: str) -> str:
        """Returns the base URL of the models of a `ModelProtocol`, as `AgentTurn.model_url` wants it."""
        return f"{{relay}}/broker/{protocol}" if self.has_broker else "{relay}"


Before = Callable[[], Awaitable[bool]]
"""Records that a run may change something outside; False = it may not, now."""
Approve = Callable[[Deed, Before], Awaitable[None]]
"""Returns when a run may do that, once and now.

Raises: NotApprovedError: it may not. StillWaitingError: nobody has answered yet. OSError: the database does not answer.
"""


AskPerson = Callable[[Question], Awaitable[str]]
"""Returns what the agent is told once a person has answered, or nobody in time.

Raises: NotApprovedError: nobody will. StillWaitingError: nobody has answered yet. OSError: the database does not answer.
"""


class NotApprovedError(Exception):
    """A deed of an agent is not done; the message is for the agent."""


class ExpiredError(NotApprovedError):
    """Nobody has answered in time."""


class UnrecordedError(NotApprovedError):
    """It may be done, but the record of its run cannot say so first."""

    def __init__(self) -> None:
        super().__init__("the run's record cannot be written, so nothing may be changed")


class StillWaitingError(NotApprovedError):
    """Nobody has answered yet: asked for again, it may be done."""


async def _not_at_all(_since: datetime) -> float:
    return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunApprovals:
    """How one run asks people: for what it may not do unasked, and what its agent wants to know."""

    approve: Approve
    covers: Callable[[Deed], bool]
    """Whether a rule is about that, whatever it says."""
    state_of: Callable[[DeedKind], Awaitable[ApprovalState | None]]
    """How what it has asked for last stands, of that kind; None = it has asked for none. Raises: OSError."""
    max_wait_s: float
    """How long people may be asked in all, beside the run's own time."""
    waited_s: Callable[[datetime], Awaitable[float]] = _not_at_all
    """For how many seconds since then something of it has waited for them, at whichever process it was asked for. Raises: OSError."""
    ask_person: AskPerson | None = None
    """None = its agent may not."""


CONTEXT_EXCEEDED = "context_length_exceeded"
"""As the error of a call, whatever its provider calls it: it asked for more than the model takes."""
NO_ANSWER = "no_answer"
"""As the error of a call that went well, in whose answer nothing was a model's."""
CLIENT_GONE = 499
"""As the status of a call: the agent did not wait for its answer."""
_OK = range(200, 300)
_CODE_OF_ERROR: Mapping[str, AgentErrorCode] = {
    CONTEXT_EXCEEDED: AgentErrorCode.MODEL_CONTEXT_EXCEEDED,
    # Source: Anthropic Messages API, "Errors", read 2026-11.
    "authentication_error": AgentErrorCode.MODEL_AUTH_FAILED,
    "permission_error": AgentErrorCode.MODEL_AUTH_FAILED,
    "billing_error": AgentErrorCode.MODEL_BILLING,
    "not_found_error": AgentErrorCode.MODEL_NOT_FOUND,
    "request_too_large": AgentErrorCode.MODEL_CONTEXT_EXCEEDED,
    "rate_limit_error": AgentErrorCode.MODEL_RATE_LIMITED,
    "overloaded_error": AgentErrorCode.MODEL_OVERLOADED,
    # Source: OpenAI API, "Error codes", read 2026-11.
    "invalid_api_key": AgentErrorCode.MODEL_AUTH_FAILED,
    "insufficient_quota": AgentErrorCode.MODEL_BILLING,
    "model_not_found": AgentErrorCode.MODEL_NOT_FOUND,
    "rate_limit_exceeded": AgentErrorCode.MODEL_RATE_LIMITED,
    "server_is_overloaded": AgentErrorCode.MODEL_OVERLOADED,
    "slow_down": AgentErrorCode.MODEL_OVERLOADED,
    # Source: Gemini API, "Troubleshooting", error codes, read 2026-11; the first is the reason of an INVALID_ARGUMENT.
    "API_KEY_INVALID": AgentErrorCode.MODEL_AUTH_FAILED,
    "UNAUTHENTICATED": AgentErrorCode.MODEL_AUTH_FAILED,
    "PERMISSION_DENIED": AgentErrorCode.MODEL_AUTH_FAILED,
    "NOT_FOUND": AgentErrorCode.MODEL_NOT_FOUND,
    "RESOURCE_EXHAUSTED": AgentErrorCode.MODEL_RATE_LIMITED,
    "UNAVAILABLE": AgentErrorCode.MODEL_OVERLOADED,  # "temporarily overloaded or down"
}


def find_failure(call: ModelCall) -> AgentErrorCode | None:
    """Returns why a model gave no answer; None = it gave one, or what is wrong is the request. An answer that broke off is none."""
    if known := _CODE_OF_ERROR.get(call.error):
        return known
    if call.status not in _OK:
        return code_of_status(call.status)
    return AgentErrorCode.MODEL_UNAVAILABLE if call.error else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantHooks:
    """Holds what the broker calls of a run, as long as the run's grant is open."""

    on_call: Callable[[ModelCall], None]
    """Hears of each model call that has ended, and of what was refused to the thread's sandbox."""
    tell_call: Callable[[], Awaitable[None]] | None = None
    """Awaited after `on_call`, before the answer's end is sent, with which its run may be over; None = who counts calls has heard it."""
    on_effect: Callable[[], Awaitable[None]] | None = None
    """Awaited before the first request that may change something outside is let through; None = none is."""
    refusal: AskLeave | None = None
    """Asked before each model call; None = all may be made."""
    may_act: Gate = always_open
    """Before each request that may change something outside."""
    approvals: RunApprovals | None = None
    """None = it asks people nothing."""
    tally: Tally = field(default_factory=Tally)
    """Of what goes by the proxy."""


class ModelBroker(Protocol):
    """Keeps provider keys outside sandboxes."""

    def endpoint_for(self, session_id: SessionId) -> BrokerEndpoint:
        """Returns what the thread's sandbox is given; the directory of a socket is there until `close`."""
        ...

    def open_grant(
        self,
        grant: ModelGrant,
        hooks: GrantHooks,
    ) -> AbstractAsyncContextManager[str]:
        """Yields a run token, good while inside (and never after `expires_at`), with a listener at the thread's endpoint."""
        ...

    def keep(self, run_id: RunId) -> None:
        """Lets the grant of a run outlive its block, with its listener and its hooks, until it expires or is opened again: its agent works on between two slices."""
        ...

    def rebind(self, session_id: SessionId, endpoint_id: SessionId) -> None:
        """Gives the thread the endpoint that a prepared sandbox has under `endpoint_id`; the thread's own is closed.

        Closing the thread's endpoint closes this one from now on.
        """
        ...

    def close(self, session_id: SessionId) -> None:
        """Closes the thread's endpoint: its sandbox is gone, or will be without another run. May be repeated."""
        ...

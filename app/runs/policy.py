"""Who may ask, how much, how long: pure decisions."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.errors import ErrorCode
from app.runs.choice import AgentOffer, find_problem
from app.runs.model import RunRequest, Surface
from app.runs.option_values import unknown_word
from app.runs.options import INVISIBLE

MAX_ATTEMPTS = 3
"""Executions of one run: the first and two after crashes."""

_INVISIBLE = re.compile(f"[{INVISIBLE}]")
"""Characters a person does not see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPolicy:
    """The operator's limits. Times in seconds."""

    allowed_users: frozenset[str] = frozenset()
    allowed_channels: frozenset[str] = frozenset()
    allow_external: bool = False
    runs_per_user_hour: int = 30
    run_timeout_s: float = 600
    idle_timeout_s: float = 180
    queue_timeout_s: float = 1800
    queue_limit: int = 500
    capacity: int = 32
    """Runs at once in this process."""
    create_attempts: int = 3
    max_disk_bytes: int = 10 * 1024**3
    """Of a thread's files, its home and temporary files together."""
    session_keep_s: float = 0
    """How long a thread's sandbox outlives a run; 0 = not at all."""
    announce_after_s: float = 60
    """0 = never."""
    sandboxes: Mapping[str, str] = field(default_factory=dict)
    """Providers that may be asked for, by the words of `SANDBOX_WORDS`."""
    agents: Mapping[str, AgentOffer] = field(default_factory=dict)
    """Agents that may be asked for, the default one among them; empty = only that, with its own model."""
    is_agent_set: bool = False
    """The operator named the default agent."""
    is_provider_set: bool = False
    """The operator named the default provider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    code: ErrorCode
    detail: str
    """For the person who asked: lower case, no full stop."""


def find_refusal(
    request: RunRequest,
    policy: RunPolicy,
    *,
    runs_last_hour: int,
    unfinished: int,
    is_going: bool = False,
    excess: str = "",
) -> Refusal | None:
    """Why this request will not be run, if it will not.

    `runs_last_hour` and `unfinished` include the request itself. `is_going`: another run answers the same message.
    `excess`: the budget that is used up.
    """
    if not_allowed := _not_allowed(request, policy):
        return Refusal(code=ErrorCode.NOT_ALLOWED, detail=not_allowed)
    if is_going:
        invalid = "this is being tried again already; the answer will come in its thread"
    else:
        invalid = find_invalid(request, policy)
    if invalid:
        return Refusal(code=ErrorCode.REQUEST_INVALID, detail=invalid)
    if runs_last_hour > policy.runs_per_user_hour:
        return Refusal(
            code=ErrorCode.NOT_ALLOWED,
            detail=f"you have used your {policy.runs_per_user_hour} runs for this hour; please try again later",
        )
    if excess and request.options.command is None:
        return Refusal(code=ErrorCode.BUDGET_EXCEEDED, detail=excess)
    if unfinished > policy.queue_limit:
        return Refusal(
            code=ErrorCode.QUEUE_FULL,
            detail=f"the limit is {policy.queue_limit} messages that wait or are worked on",
        )
    return None


def _not_allowed(request: RunRequest, policy: RunPolicy) -> str:
    if request.is_external and not policy.allow_external:
        return "people of other organisations cannot use Orion here"
    if policy.allowed_users and request.user not in policy.allowed_users:
        return "you are not on the list of people who may use Orion; please ask the operator for access"
    is_channel = request.surface is Surface.CHANNEL
    if is_channel and policy.allowed_channels and request.channel not in policy.allowed_channels:
        return "Orion is not switched on in this channel; please ask the operator"
    return ""


def find_invalid(request: RunRequest, policy: RunPolicy) -> str:
    """What is wrong with the message itself, whoever wrote it and whenever; empty = nothing."""
    options = request.options
    if options.problem:
        return options.problem
    if options.sandbox and options.sandbox not in policy.sandboxes:
        return unknown_word("sandbox", options.sandbox, policy.sandboxes)
    if unknown := find_problem(options, policy.agents):
        return unknown
    is_empty = not _INVISIBLE.sub("", options.prompt).strip() and not request.file_names
    if is_empty and not options.pr:
        said = " ".join(f"{name}={value}" for name, value in options.said.items())
        keep = f"; to be answered so from now on, write settings {said}" if said else ""
        return f"your message has no question in it{keep}"
    return ""


def may_stop(user: str, policy: RunPolicy) -> bool:
    """Whoever may ask may stop: a thread belongs to everyone in it."""
    return not policy.allowed_users or user in policy.allowed_users

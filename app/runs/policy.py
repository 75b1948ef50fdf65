"""Who may ask, how much, how long: pure decisions."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from app.approvals.rules import ApprovalRules
from app.audit.records import AuditEntry
from app.egress.hosts import HostLists
from app.errors import ErrorCode
from app.permissions.rules import Permissions, Right, Ruling
from app.runs.model import Run
from app.runs.options import RunOptions, check_model, unknown_word
from app.runs.request import Addressing, MemoryVerb, RunRequest, Surface
from app.runs.selection import (
    CatalogAgent,
    RepositoryRule,
    channel_change,
    find_problem,
)
from app.runs.session import Mount

MAX_PLACE_ATTEMPTS = 3
"""After crashes: a message at which the process dies must not end every later one, too."""
MAX_ATTEMPTS = 3
"""Executions of one run: the first and two after crashes."""

FOR_NO_GUESTS = "people of other organisations cannot use Orion here"
_USER_ID = re.compile(r"[UW][A-Z0-9]{2,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimings:
    """Says how often the core tries again, and for how long. No operator's business: tests shorten them."""

    slack_retry_s: float = 10.0
    """Between two attempts to reach Slack."""
    refuse_within_s: float = 1.0
    """A refusal that Slack's limits hold up for longer is told in the background."""
    ending_retry_s: float = 1.0
    """Before a run is looked at again that something else has begun to end."""
    delivery_grace: timedelta = timedelta(minutes=15)
    """An outage of Slack may outlast a run by this much without losing its answer."""
    sharing_grace: timedelta = timedelta(minutes=2)
    """Files are shared so long after their run has ended, if Slack does not take them at once."""
    close_interval_s: float = 5.0
    """Between two looks for idle sandboxes whose time is over."""


def split_words(value: object) -> object:
    """Splits a text at commas and white space; returns what is none as it is."""
    return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value


def _read_people(value: object) -> object:
    words = split_words(value)
    if words in ((), ("members",)):
        return None
    if words == ("nobody",):
        return ()
    if isinstance(words, tuple) and not all(map(_USER_ID.fullmatch, words)):
        raise ValueError("members, nobody, or Slack user ids such as U012AB3CD")
    return words


_Words = Annotated[frozenset[str], BeforeValidator(split_words)]


@dataclass(frozen=True, kw_only=True)
class AccessSettings:
    """Who may ask: settings of the operator, as those below. `alias` is the name in the environment."""

    allowed_users: Annotated[
        _Words,
        Field(
            alias="ORION_ALLOWED_USERS",
            description="Slack user ids; empty = everyone in the workspace.",
        ),
    ] = frozenset()
    allowed_channels: Annotated[
        _Words,
        Field(
            alias="ORION_ALLOWED_CHANNELS",
            description="Slack channel ids; empty = all. DMs are not affected.",
        ),
    ] = frozenset()
    allowed_bots: Annotated[
        _Words,
        Field(
            alias="ORION_ALLOWED_BOTS",
            description="Other apps whose posts may ask, when they mention Orion: their bot (B…), app (A…) or user ids (U…); empty = none.",
        ),
    ] = frozenset()
    bot_turns: Annotated[
        int,
        Field(
            ge=1,
            alias="ORION_BOT_TURNS",
            description="Runs that other apps may start in one thread.",
        ),
    ] = 3
    allow_external: Annotated[
        bool,
        Field(
            alias="ORION_ALLOW_EXTERNAL",
            description="People of other companies in shared channels.",
        ),
    ] = False
    channel_defaults_by: Annotated[
        frozenset[str] | None,
        BeforeValidator(_read_people),
        Field(
            alias="ORION_CHANNEL_DEFAULTS_BY",
            description="Who may change a channel's defaults: members (of this workspace, where they may ask), nobody, or Slack user ids.",
            json_schema_extra={"default": "members"},
        ),
    ] = None
    """Empty = nobody, None = members of the workspace who may ask there."""
    operators: Annotated[
        _Words,
        Field(
            alias="ORION_OPERATORS",
            description="Slack user ids of those whom Orion's home tab shows how it goes: runs, queue, money; empty = nobody.",
        ),
    ] = frozenset()
    runs_per_user_hour: Annotated[
        int,
        Field(
            ge=1,
            alias="ORION_RUNS_PER_USER_HOUR",
            description="Runs a person may start within an hour.",
        ),
    ] = 30


SHORTEST_SLICE_S, LONGEST_SLICE_S = 1.0, 3600.0


def _check_slice(seconds: float) -> float:
    if seconds != 0 and not SHORTEST_SLICE_S <= seconds <= LONGEST_SLICE_S:
        raise ValueError(f"0, or {SHORTEST_SLICE_S:g} to {LONGEST_SLICE_S:g} seconds")
    return seconds


@dataclass(frozen=True, kw_only=True)
class LimitSettings:
    """How long, and how many."""

    run_timeout_s: Annotated[
        float,
        Field(
            gt=0,
            le=86_400,
            alias="ORION_RUN_TIMEOUT_S",
            description="Seconds from a run's start.",
        ),
    ] = 600
    slice_s: Annotated[
        float,
        AfterValidator(_check_slice),
        Field(
            alias="ORION_SLICE_S",
            description="Seconds of work on a run at a time, 1 to 3600, after which any process may go on with it; 0 = to its end.",
        ),
    ] = 0
    idle_timeout_s: Annotated[
        float,
        Field(
            gt=0,
            alias="ORION_IDLE_TIMEOUT_S",
            description="Seconds without any output of the agent, once it has begun to print.",
        ),
    ] = 180
    approval_timeout_s: Annotated[
        float,
        Field(
            ge=60,
            le=86_400,
            alias="ORION_APPROVAL_TIMEOUT_S",
            description="Seconds in which people must have answered what waits for them (`[[approvals]]` and `questions` of orion.toml).",
        ),
    ] = 3600
    queue_timeout_s: Annotated[
        float,
        Field(gt=0, alias="ORION_QUEUE_TIMEOUT_S", description="Seconds a message may wait."),
    ] = 1800
    queue_limit: Annotated[
        int,
        Field(
            ge=1,
            alias="ORION_QUEUE_LIMIT",
            description="Messages waiting or worked on at the most.",
        ),
    ] = 500
    max_concurrent_runs: Annotated[
        int,
        Field(
            ge=1,
            le=1000,
            alias="ORION_MAX_CONCURRENT_RUNS",
            description="Runs at once in one process.",
        ),
    ] = 32
    create_attempts: Annotated[
        int,
        Field(
            ge=1,
            le=10,
            alias="ORION_SANDBOX_CREATE_ATTEMPTS",
            description="Attempts to make a sandbox, with exponential backoff and jitter between them.",
        ),
    ] = 3
    session_keep_s: Annotated[
        float,
        Field(
            ge=0,
            le=86_400,
            alias="ORION_SESSION_KEEP_S",
            description="Seconds a thread's sandbox is kept after a run; its files are saved in any case.",
        ),
    ] = 900


@dataclass(frozen=True, kw_only=True)
class FileSettings:
    """Files of messages, for their agents."""

    file_max_mib: Annotated[
        int,
        Field(
            ge=1,
            le=1024,
            alias="ORION_FILE_MAX_MIB",
            description="MiB of one file that is taken.",
        ),
    ] = 50
    files_per_run: Annotated[
        int,
        Field(
            ge=0,
            le=200,
            alias="ORION_FILES_PER_RUN",
            description="Files that a run takes; 0 = none, their names alone.",
        ),
    ] = 20
    files_mib_per_run: Annotated[
        int,
        Field(
            ge=1,
            le=10_240,
            alias="ORION_FILES_MIB_PER_RUN",
            description="MiB of all files that a run takes.",
        ),
    ] = 200


@dataclass(frozen=True, kw_only=True)
class DeliverySettings:
    """How people are told."""

    announce_after_s: Annotated[
        float,
        Field(
            ge=0,
            alias="ORION_ANNOUNCE_AFTER_S",
            description="Runs longer than this end with a line that mentions the asker; 0 = never.",
        ),
    ] = 60


class FollowUps(StrEnum):
    """Says which replies without a mention are answered."""

    NEVER = "never"
    TWO_PARTY = "two-party"
    """In a thread where nobody but one person and Orion has written, that person's."""
    JUDGED = "judged"
    """Those, and of threads with more people what a small model takes for addressed to Orion."""


@dataclass(frozen=True, kw_only=True)
class FollowUpSettings:
    """Replies in threads that do not mention Orion."""

    follow_ups: Annotated[
        FollowUps,
        Field(
            alias="ORION_FOLLOW_UPS",
            description="Which replies without a mention are answered in threads where Orion was asked: never, two-party (of the only person in the thread), judged (also those that a small model takes for addressed to Orion).",
        ),
    ] = FollowUps.TWO_PARTY
    follow_up_model: Annotated[
        str,
        AfterValidator(check_model),
        Field(
            alias="ORION_FOLLOW_UP_MODEL",
            description="Anthropic model that judges; a small one will do.",
        ),
    ] = "claude-haiku-5-5"
    follow_up_calls_day: Annotated[
        int,
        Field(
            ge=0,
            le=1_000_000,
            alias="ORION_FOLLOW_UP_CALLS_DAY",
            description="Questions to that model on a day of UTC, of all processes; beyond them, replies that it would judge stay unanswered.",
        ),
    ] = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPolicy(AccessSettings, FollowUpSettings, LimitSettings, FileSettings, DeliverySettings):
    """The operator's limits, and what follows from other settings. Times in seconds."""

    session_keep_s: float = 0
    """How long a thread's sandbox outlives a run; 0 = not at all."""
    capacity: int = 32
    """Runs at once in this process."""
    max_disk_bytes: int = 10 * 1024**3
    """Of a thread's files, its home and temporary files together."""
    sandboxes: Mapping[str, str] = field(default_factory=dict)
    """Providers that may be asked for, by the words of `SANDBOX_WORDS`."""
    agents: Mapping[str, CatalogAgent] = field(default_factory=dict)
    """Agents that may be asked for, the default one among them; empty = only that, with its own model."""
    channels: Mapping[str, RunOptions] = field(default_factory=dict)
    """What the operator's file says of channels, by their ids."""
    channel_follow_ups: Mapping[str, FollowUps] = field(default_factory=dict)
    """The same of follow-ups."""
    instructions: Mapping[str, str] = field(default_factory=dict)
    """The operator's texts for channels, by their ids."""
    rules: Mapping[str, Sequence[RepositoryRule]] = field(default_factory=dict)
    """`Catalog.rules`."""
    hosts: HostLists = field(default_factory=HostLists)
    permissions: Permissions = field(default_factory=Permissions)
    """As they are now: they change while it runs."""
    approvals: ApprovalRules = field(default_factory=ApprovalRules)
    """What agents may do outside only after somebody has said yes."""
    asks_people: bool = False
    """Agents may ask people in mid-run, where their channel says nothing else."""
    channels_asking: Mapping[str, bool] = field(default_factory=dict)
    """Whether they may in channels that say so, by ids."""
    is_agent_set: bool = False
    """The operator named the default agent."""
    is_provider_set: bool = False
    """The operator named the default provider."""
    mount: Mount | None = None
    """Agents work there instead of in their threads' own files."""
    timings: RunTimings = RunTimings()

    @property
    def max_still_s(self) -> float:
        """Returns for how long of a run people may be asked, beside its own time."""
        may_ask = self.approvals.may_ask or self.asks_people or any(self.channels_asking.values())
        return self.approval_timeout_s if may_ask else 0

    def asks_people_in(self, channel: str) -> bool:
        """Whether the agents of a channel may ask people in mid-run."""
        return self.channels_asking.get(channel, self.asks_people)

    def follow_ups_in(self, channel: str) -> FollowUps:
        """Returns the rule of a channel."""
        return self.channel_follow_ups.get(channel, self.follow_ups)


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
    bot_turns: int = 0,
    excess: str = "",
) -> Refusal | None:
    """Returns why a request will not be run; empty = it will.

    `runs_last_hour` and `unfinished` include the request itself. `is_going`: another run answers the same message.
    `bot_turns`: how many runs other apps have started in its thread, itself included. `excess`: the budget that is used up.
    """
    if not_allowed := _not_allowed(request, policy, bot_turns=bot_turns):
        return Refusal(code=ErrorCode.NOT_ALLOWED, detail=not_allowed)
    if is_going:
        invalid = "this is being tried again already; the answer will come in its thread"
    else:
        invalid = find_invalid(request, policy)
    if invalid:
        return Refusal(code=ErrorCode.REQUEST_INVALID, detail=invalid)
    # What was asked over hours while Orion was away is heard at once.
    if runs_last_hour > policy.runs_per_user_hour and not request.late_s:
        return Refusal(
            code=ErrorCode.NOT_ALLOWED,
            detail=f"you have used your {policy.runs_per_user_hour} runs for this hour; please try again later",
        )
    if excess and not request.is_command:
        return Refusal(code=ErrorCode.BUDGET_EXCEEDED, detail=excess)
    if unfinished > policy.queue_limit:
        return Refusal(
            code=ErrorCode.QUEUE_FULL,
            detail=f"the limit is {policy.queue_limit} messages that wait or are worked on",
        )
    return None


def decision_entry(
    run: Run,
    policy: RunPolicy,
    *,
    at: datetime,
    mask: Callable[[str], str],
    refused: str = "",
) -> AuditEntry:
    """Returns what the audit log says of a message: that it may be answered, or why it may not (`refused`). `mask` takes secrets out of what a person wrote."""
    request = run.request
    act, target = request.act
    return AuditEntry(
        id=f"{run.id}:{act}:{'refused' if refused else 'allowed'}",
        at=at,
        team=request.team,
        channel=request.channel,
        user=request.user,
        act=act,
        target=mask(target) if target else "",
        is_allowed=not refused,
        reason=mask(refused) if refused else _by_what(request, policy),
        run_id=run.id,
    )


def _by_what(request: RunRequest, policy: RunPolicy) -> str:
    """Returns by what a message may be answered that `find_refusal` does not refuse."""
    changes = channel_change(request) is not None
    right = Right.SET_DEFAULTS if changes else Right.USE
    ruling = policy.permissions.find(
        right, user=request.user, channel=request.channel, counts=False
    )
    if ruling is not None:
        return f"{ruling.rule} of orion.toml"
    if changes and policy.channel_defaults_by is not None:
        return "ORION_CHANNEL_DEFAULTS_BY"
    if request.is_bot:
        return "ORION_ALLOWED_BOTS"
    if request.is_external:
        return "ORION_ALLOW_EXTERNAL"
    return "ORION_ALLOWED_USERS" if policy.allowed_users else "nothing forbids it"


def why_no_follow_up(request: RunRequest, policy: RunPolicy) -> str:
    """Returns why a reply that mentions nobody is not answered, whatever its thread is: a stable word; empty = it may be."""
    if policy.follow_ups_in(request.channel) is FollowUps.NEVER:
        return "never"
    if request.addressing is Addressing.OTHERS:
        return "others"
    return "not_allowed" if _not_allowed(request, policy, bot_turns=0) else ""


def _not_allowed(request: RunRequest, policy: RunPolicy, *, bot_turns: int) -> str:
    if bot_turns > policy.bot_turns:
        return f"other apps may start {policy.bot_turns} runs in one thread"
    if request.is_external and not policy.allow_external:
        return FOR_NO_GUESTS
    if policy.allowed_users and not request.is_bot and request.user not in policy.allowed_users:
        return "you are not on the list of people who may use Orion; please ask the operator for access"
    ruling = policy.permissions.find(Right.USE, user=request.user, channel=request.channel)
    if ruling is not None and not ruling.is_allowed:
        return f"you may not use Orion here{by_rule(ruling)}"
    is_channel = request.surface is Surface.CHANNEL
    if is_channel and policy.allowed_channels and request.channel not in policy.allowed_channels:
        return "Orion is not switched on in this channel; please ask the operator"
    return why_no_change(request, policy)


def find_invalid(request: RunRequest, policy: RunPolicy) -> str:
    """Returns what is wrong with the message itself, whoever wrote it and whenever; empty = nothing."""
    options = request.options
    if options.problem:
        return options.problem
    if options.sandbox and options.sandbox not in policy.sandboxes:
        return unknown_word("sandbox", options.sandbox, policy.sandboxes)
    if unknown := find_problem(options, policy.agents):
        return unknown
    if missing := request.missing:
        return missing
    if request.is_empty and not options.pr:
        said = " ".join(f"{name}={value}" for name, value in options.said.items())
        keep = f"; to be answered so from now on, write settings {said}" if said else ""
        return f"your message has no question in it{keep}"
    return ""


def why_no_change(request: RunRequest, policy: RunPolicy) -> str:
    """Returns why a message may not change what its channel has: lower case, no full stop; empty = it may, or does not try."""
    command = request.memory_command
    if command is not None and command.verb is not MemoryVerb.SHOW:
        is_ours = not (request.is_external or request.is_bot)
        return "" if is_ours else "what I remember is for people of this workspace to change"
    if channel_change(request) is None:
        return ""
    ruling = policy.permissions.find(Right.SET_DEFAULTS, user=request.user, channel=request.channel)
    if ruling is not None and not request.is_external:
        return (
            ""
            if ruling.is_allowed
            else f"you may not change what is set for this channel{by_rule(ruling)}"
        )
    return _why_no_default(request, policy)


def _why_no_default(request: RunRequest, policy: RunPolicy) -> str:
    """Returns why a message may not change its channel's defaults, as the settings have it."""
    if policy.channel_defaults_by is None:
        is_guest = request.is_bot or (request.is_external and request.surface is Surface.CHANNEL)
        return "a channel's defaults are for people of this workspace to change" if is_guest else ""
    if may_change_channel(request.user, policy):
        return ""
    if not policy.channel_defaults_by:
        return "a channel's defaults cannot be changed from Slack here; please ask the operator"
    known = ", ".join(sorted(policy.channel_defaults_by))
    return f"this channel's defaults may be changed only by {known}; please ask one of them"


def may_change_channel(user: str, policy: RunPolicy) -> bool:
    """Whether somebody of this workspace may change what others have set for a channel."""
    return policy.channel_defaults_by is None or user in policy.channel_defaults_by


def is_given_up(run: Run) -> bool:
    """Whether it was placed so often after crashes that it is not tried any more."""
    return run.place_attempt > MAX_PLACE_ATTEMPTS


def may_stop(user: str, policy: RunPolicy, *, is_external: bool = False) -> bool:
    """Whether a person may stop runs: whoever may ask may, as a thread belongs to everyone in it."""
    if is_external and not policy.allow_external:
        return False
    return not policy.allowed_users or user in policy.allowed_users


def by_rule(ruling: Ruling) -> str:
    """Returns which rule says so, for the end of a sentence to whom it forbids something."""
    return f" ({ruling.rule} of orion.toml); please ask the operator"

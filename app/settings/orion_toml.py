"""`orion.toml`: what may stand in it, and how it is told what is wrong.

    questions = true

    [channels.C0123456789]
    questions = false
    sandbox = "docker"
    agent = "claude"
    model = "sonnet"
    budget_day_usd = 20
    follow_ups = "judged"
    instructions = "Answer in German. Deploys are on Tuesdays."
    repo = "acme/shop"
    egress_hosts = ["api.example.com", "@npm"]
    rules = [{ words = ["invoice", "tax rate"], repo = "acme/billing" }]

    [[rules]]
    words = ["website"]
    repo = "acme/site"

    [[approvals]]
    tool = "linear.create_*"
    decision = "ask"
    by = "operators"

    [groups]
    backend = ["U0123456789", "S0123456789"]

    [[permissions]]
    who = "backend"
    agents = ["claude", "codex"]

    [agents.claude]
    files = { "bin/deploy-notes" = "tools/deploy-notes.sh" }
    commands = [["python3", "-m", "venv", "lint"], ["lint/bin/pip", "install", "ruff"]]

    [repositories."acme/api"]
    setup = ["uv sync --frozen"]
    init = ["make links"]
    egress_hosts = ["*.example.org", "private:mirror.example.com"]

    [prices."claude-*"]
    input = 3
    output = 15
    cache_read = 0.3
    cache_write = 3.75

Prices are dollars for a million tokens; a name that ends in `*` stands for all models that begin so. `cache_write_1h`, of what
is kept in the cache for an hour, need not be said: it is twice the input.

`approvals`, of a channel or of all: what a person is asked for before an agent does it outside; see docs/approvals.md.

`groups`, of people and of user groups of Slack's, and `permissions`, of who may do what: see docs/permissions.md. Both count within
five seconds of a change of the file.

`questions`, of all channels or of one: agents may ask people in mid-run; see docs/approvals.md. Without it they do not.

`instructions`: told to the agents that answer in that channel, 1,000 bytes at the most with all that people told Orion to remember there.

`repo`: of the channel's new threads, where nobody says another one. `rules`, of a channel or of all: the repository of a message that has
one of these words in it, as they are written or with an `s`; where several may be meant, the person is asked.

`egress_hosts`: that sandboxes of the channel, or of threads in the repository, reach beside those of ORION_EGRESS_HOSTS.

`setup`: lines of a shell that install what work in the repository needs, run in a clone before anybody asks, with the hosts of ORION_EGRESS_HOSTS and of the repository, and
no key; threads begin with a copy of what they leave. `init`: lines run when a thread has the repository, with the network that its agent has. Targets are relative to a directory of their own in the environment, `added`, in which the commands run, too; sources are
relative to the file. Nothing else that a command writes is kept.
"""

import posixpath
import re
import stat
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    model_validator,
)

from agent_scripts.registry import agent_names
from app.approvals.rules import ApprovalRules
from app.egress.hosts import Item
from app.permissions.rules import PermissionRule
from app.runs.budget import ANY_ENDING, Price
from app.runs.commands import find_instructions_problem
from app.runs.environment import AddedFile, Additions
from app.runs.options import SANDBOX_WORDS, RunOptions, check_model, check_repo
from app.runs.policy import FollowUps
from app.runs.selection import RepositoryRule
from app.settings.approvals import ApprovalTable, join_rules
from app.settings.group import Hosts, SettingsError
from app.settings.permissions import (
    GROUPS,
    Dollars,
    GroupName,
    Members,
    PermissionTable,
    check_number,
    nearest,
)
from app.settings.toml_lines import place_of

ORION_TOML = Path("orion.toml")
"""In the directory that Orion is started in, as `.env` is."""
MAX_FILES_BYTES = 16 * 1024 * 1024
"""Of all files of an agent: they are held in memory. Something larger is for a command to fetch."""
MAX_RATE = 100_000
"""Dollars for a million tokens; more is a slip of the pen."""
MAX_WORD_CHARS = 60
"""Of a rule's."""
_MAX_SHOWN_CHARS = 80
_NUL = "\0"
_CHANNEL_ID = re.compile(r"[CDG][A-Z0-9]{2,20}")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_WORDS = {
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "list_type": "must be a list of commands",
    "tuple_type": "must be a list of arguments",
    "string_type": "must be a text",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "missing": "is missing",
}
"""For pydantic's own."""


def _check_is_list(command: object) -> object:
    if isinstance(command, str):
        raise ValueError('a command is a list of arguments, such as ["pip", "--version"]')  # noqa: TRY004 - pydantic's way
    return command


def _check_arguments(command: tuple[str, ...]) -> tuple[str, ...]:
    if not command or not command[0]:
        raise ValueError("a command needs a program")
    if any(_NUL in argument for argument in command):
        raise ValueError("an argument cannot hold a NUL")
    return command


def _check_line(line: str) -> str:
    if not line.strip():
        raise ValueError("a command cannot be empty")
    return line


def _check_target(target: str) -> str:
    is_inside = not target.startswith(("/", "../")) and target not in (".", "..")
    if not is_inside or target != posixpath.normpath(target) or _NUL in target:
        raise ValueError("a target is a plain relative path, such as bin/tool")
    return target


def _check_agent(name: str) -> str:
    if name not in agent_names():
        raise ValueError(f"no such agent{nearest(name, agent_names())}")
    return name


def _check_channel(name: str) -> str:
    if not _CHANNEL_ID.fullmatch(name):
        raise ValueError("a channel is named by its id, such as C0123456789")
    return name


def _check_sandbox(word: str) -> str:
    if word not in SANDBOX_WORDS:
        raise ValueError(f"no such sandbox{nearest(word, SANDBOX_WORDS)}")
    return word


def _check_follow_ups(word: str) -> FollowUps:
    if word not in tuple(FollowUps):
        raise ValueError(f"no such rule{nearest(word, tuple(FollowUps))}")
    return FollowUps(word)


def _check_model_or_beginning(name: str) -> str:
    if name != ANY_ENDING:
        check_model(name.removesuffix(ANY_ENDING))
    return name


_Rate = Annotated[Decimal, BeforeValidator(check_number), Field(ge=0, le=MAX_RATE)]


def _check_repository(name: str) -> str:
    try:
        return check_repo(name)
    except ValueError as exc:  # its words are for people in Slack
        raise ValueError("is no repository: write owner/name or https://…") from exc


def _check_repository_table(name: str) -> str:
    """Returns the name as it is: two tables of one repository would be one in its usual spelling, without a word."""
    _check_repository(name)
    return name


def _check_instructions(text: str) -> str:
    if problem := find_instructions_problem(text):
        raise ValueError(problem)
    return text


def _check_word(word: str) -> str:
    plain = " ".join(word.split())
    if not (plain[:1].isalnum() and plain[-1:].isalnum() and len(plain) <= MAX_WORD_CHARS):
        raise ValueError(
            f"would never be found: write a word, or a few, of at most {MAX_WORD_CHARS} characters"
        )
    return plain


_Model = Annotated[str, AfterValidator(_check_model_or_beginning)]
_Word = Annotated[str, AfterValidator(_check_word)]
_Agent = Annotated[str, AfterValidator(_check_agent)]
_Channel = Annotated[str, AfterValidator(_check_channel)]
_Repository = Annotated[str, AfterValidator(_check_repository)]
_RepositoryName = Annotated[str, AfterValidator(_check_repository_table)]
_Sandbox = Annotated[str, AfterValidator(_check_sandbox)]
_FollowUps = Annotated[str, AfterValidator(_check_follow_ups)]
_Command = Annotated[
    tuple[str, ...], BeforeValidator(_check_is_list), AfterValidator(_check_arguments)
]
_Line = Annotated[str, AfterValidator(_check_line)]
_Target = Annotated[str, AfterValidator(_check_target)]
_CLOSED = ConfigDict(extra="forbid", frozen=True)


class _AgentTable(BaseModel):
    model_config = _CLOSED

    files: dict[_Target, str] = Field(default_factory=dict)
    commands: list[_Command] = Field(default_factory=list)


class _RuleTable(BaseModel):
    model_config = _CLOSED

    words: Annotated[tuple[_Word, ...], Field(min_length=1)]
    repo: _Repository

    @property
    def rule(self) -> RepositoryRule:
        return RepositoryRule(words=self.words, repo=self.repo)


class _ChannelTable(BaseModel):
    model_config = _CLOSED

    sandbox: _Sandbox | None = None
    agent: _Agent | None = None
    model: Annotated[str, AfterValidator(check_model)] | None = None
    budget_day_usd: Dollars | None = None
    follow_ups: _FollowUps | None = None
    instructions: Annotated[str, AfterValidator(_check_instructions)] | None = None
    repo: _Repository | None = None
    egress_hosts: Hosts = ()
    rules: list[_RuleTable] | None = None
    questions: StrictBool | None = None
    approvals: list[ApprovalTable] | None = None

    @model_validator(mode="after")
    def _must_say_something(self) -> "_ChannelTable":
        if not self.model_fields_set:
            known = ", ".join(self.__class__.model_fields)
            raise ValueError(f"says nothing; there are: {known}")
        return self


class _RepositoryTable(BaseModel):
    model_config = _CLOSED

    setup: list[_Line] = Field(default_factory=list)
    init: list[_Line] = Field(default_factory=list)
    egress_hosts: Hosts = ()


class _PriceTable(BaseModel):
    model_config = _CLOSED

    input: _Rate
    output: _Rate
    cache_read: _Rate
    cache_write: _Rate
    cache_write_1h: _Rate | None = None


class _File(BaseModel):
    model_config = _CLOSED

    channels: dict[_Channel, _ChannelTable] = Field(default_factory=dict)
    agents: dict[_Agent, _AgentTable] = Field(default_factory=dict)
    repositories: dict[_RepositoryName, _RepositoryTable] = Field(default_factory=dict)
    prices: dict[_Model, _PriceTable] = Field(default_factory=dict)
    rules: list[_RuleTable] = Field(default_factory=list)
    questions: StrictBool = False
    approvals: list[ApprovalTable] = Field(default_factory=list)
    groups: dict[GroupName, Members] = Field(default_factory=dict)
    permissions: list[PermissionTable] = Field(default_factory=list)


_TABLES: Mapping[str, type[BaseModel]] = {
    "agents": _AgentTable,
    "channels": _ChannelTable,
    "repositories": _RepositoryTable,
    "prices": _PriceTable,
    "rules": _RuleTable,
    "approvals": ApprovalTable,
    "permissions": PermissionTable,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OrionToml:
    additions: Mapping[str, Additions] = field(default_factory=dict)
    """To the environments of agents, by their names."""
    channels: Mapping[str, RunOptions] = field(default_factory=dict)
    """What channels have of their own, by ids."""
    channel_budgets: Mapping[str, Decimal] = field(default_factory=dict)
    """Dollars that a day in a channel may cost, by ids."""
    channel_follow_ups: Mapping[str, FollowUps] = field(default_factory=dict)
    """Which replies without a mention are answered, by channels' ids."""
    instructions: Mapping[str, str] = field(default_factory=dict)
    """Texts for the agents of channels, by ids."""
    rules: Mapping[str, Sequence[RepositoryRule]] = field(default_factory=dict)
    """Of channels, by ids; those of the empty id are for all."""
    repositories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Commands that run after a repository was cloned, by `owner/name` or URL."""
    setups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Commands that install what work in a repository needs, before a thread has it; by the same."""
    channel_hosts: Mapping[str, tuple[Item, ...]] = field(default_factory=dict)
    """That their sandboxes reach beside others', by channels' ids."""
    repository_hosts: Mapping[str, tuple[Item, ...]] = field(default_factory=dict)
    """The same by `owner/name` or URL."""
    approvals: ApprovalRules = field(default_factory=ApprovalRules)
    path: Path | None = None
    """Where it was read, whether it is there or not; None = nowhere."""
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Ids of people, and of Slack's user groups, by names."""
    permissions: tuple[PermissionRule, ...] = ()
    asks_people: bool = False
    """Agents may ask people in mid-run, where their channel says nothing else."""
    channels_asking: Mapping[str, bool] = field(default_factory=dict)
    """Whether they may in channels that say so, by ids."""
    prices: Mapping[str, Price] = field(default_factory=dict)
    """Of models, by their names or the beginnings of them."""


def load_orion_toml(path: Path = ORION_TOML) -> OrionToml:
    """Reads the file, and those that it names; there need not be one.

    Raises:
        SettingsError: naming the file, and every bad key with its value, a line each.
    """
    parsed = _read(path)
    return OrionToml(
        additions=_load_additions(path, parsed),
        channels={
            name: RunOptions(
                sandbox=table.sandbox or "",
                agent=table.agent or "",
                model=table.model or "",
                repo=table.repo or "",
            )
            for name, table in parsed.channels.items()
        },
        channel_budgets={
            name: table.budget_day_usd
            for name, table in parsed.channels.items()
            if table.budget_day_usd is not None
        },
        channel_follow_ups={
            name: FollowUps(table.follow_ups)
            for name, table in parsed.channels.items()
            if table.follow_ups is not None
        },
        instructions={
            name: table.instructions
            for name, table in parsed.channels.items()
            if table.instructions is not None
        },
        rules={
            name: tuple(one.rule for one in rules)
            for name, rules in (
                ("", parsed.rules),
                *((name, table.rules or ()) for name, table in parsed.channels.items()),
            )
            if rules
        },
        repositories={name: tuple(table.init) for name, table in parsed.repositories.items()},
        setups={
            name: tuple(table.setup) for name, table in parsed.repositories.items() if table.setup
        },
        channel_hosts={
            name: table.egress_hosts
            for name, table in parsed.channels.items()
            if table.egress_hosts
        },
        repository_hosts={
            name: table.egress_hosts
            for name, table in parsed.repositories.items()
            if table.egress_hosts
        },
        approvals=join_rules(
            parsed.approvals,
            {name: table.approvals or () for name, table in parsed.channels.items()},
        ),
        path=path,
        groups=parsed.groups,
        permissions=tuple(one.rule(at) for at, one in enumerate(parsed.permissions)),
        asks_people=parsed.questions,
        channels_asking={
            name: table.questions
            for name, table in parsed.channels.items()
            if table.questions is not None
        },
        prices={name: Price(**table.model_dump()) for name, table in parsed.prices.items()},
    )


def _read(path: Path) -> _File:
    try:
        found = tomllib.loads(path.read_text("utf-8"))
        groups = found.get(GROUPS)
        context = {GROUPS: tuple(groups) if isinstance(groups, dict) else ()}
        return _File.model_validate(found, context=context)
    except FileNotFoundError:
        return _File()
    except ValidationError as exc:
        lines = (f"{place_of(path, _located(one))} {_explain(one)}" for one in exc.errors())
        raise SettingsError("\n".join(lines)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as exc:
        raise SettingsError(f"{path} cannot be read: {exc}") from exc


def _load_additions(path: Path, parsed: _File) -> Mapping[str, Additions]:
    lines: list[str] = []
    found = {}
    for name, table in parsed.agents.items():
        key = f"{path}: agents.{name}"
        files, problems = _read_files(table.files, path.parent, key=f"{key}.files")
        lines += problems
        found[name] = Additions(
            files=files, commands=tuple(table.commands), origin=f"{key}.commands"
        )
    if lines:
        raise SettingsError("\n".join(lines))
    return found


def _read_files(
    sources: Mapping[str, str], directory: Path, *, key: str
) -> tuple[tuple[AddedFile, ...], list[str]]:
    """Returns the files, and what is wrong with them."""
    files, lines = [], []
    room = MAX_FILES_BYTES
    # `bin` is made for the agent's PATH in any case.
    directories = {"bin", *(str(above) for target in sources for above in Path(target).parents)}
    for target, source in sources.items():
        shown = f"{key}{_shown_key(target)}"
        path = directory / source
        try:
            if target in directories:
                lines.append(f"{shown}: is a directory of the environment, not a file")
            elif not path.is_file():
                lines.append(f"{shown}: no such file (is {source!r})")
            elif path.stat().st_size > room:
                limit = f"{MAX_FILES_BYTES // 1024**2} MiB"
                lines.append(f"{shown}: more than {limit} in all; let a command fetch it")
            else:
                data = path.read_bytes()
                room -= len(data)
                is_executable = bool(path.stat().st_mode & stat.S_IXUSR)
                files.append(AddedFile(path=target, data=data, executable=is_executable))
        except (OSError, ValueError) as exc:  # ValueError: a NUL in the path
            lines.append(f"{shown}: {exc}")
    return tuple(files), lines


def _located(error: Mapping[str, Any]) -> list[str | int]:
    return [part for part in error["loc"] if part != "[key]"]


def _explain(error: Mapping[str, Any]) -> str:
    location = _located(error)
    key = "".join(map(_shown_key, location)).removeprefix(".")
    if error["type"] == "extra_forbidden":
        lists = [name for name in ("rules", "approvals", "permissions") if name in location[:-1]]
        kind = lists[0] if lists else str(location[0])
        table = _TABLES[kind] if len(location) > 1 else _File
        return f"{key}: no such key{nearest(str(location[-1]), table.model_fields)}"
    message = _WORDS.get(error["type"]) or str(error["msg"]).removeprefix("Value error, ")
    if location != [*error["loc"]] or error["type"] == "missing":
        return f"{key}: {message}"  # the key itself is what is wrong
    shown = _as_toml(error["input"])[:_MAX_SHOWN_CHARS]
    return f"{key}: {message} (is {shown})" if shown else f"{key}: {message}"


def _as_toml(value: object) -> str:
    """Returns a value as it may stand in the file; empty for a table or a list: it would be too much of it."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return repr(value)
        case dict() | list() | tuple():
            return ""
        case _:
            return str(value)


def _shown_key(part: str | int) -> str:
    """Returns a key as it stands behind another one: `.files`, `."bin/tool"`, `[2]`."""
    if isinstance(part, int):
        return f"[{part}]"
    return f".{part}" if _BARE_KEY.fullmatch(part) else f'."{part}"'

"""Which agent, model, provider, repository and branch a run gets, and from whom each comes; and which questions for a repository are open.

What the message says counts, else what its thread has, else the person's default, else the channel's, else the one of
`orion.toml`, else the settings'. A thread has the provider where its files are, its repository, and the agent and model that
answered last, whoever asked; what somebody else has for a default moves nothing. A model belongs to an agent, a branch to a repository: a choice of another one from nearer
by drops what was chosen for the first. Where neither message nor thread names a repository, the words of a message may, by the
operator's rules; where they may mean several, or it is still open for a question before it in the thread, the person is asked.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum

from pydantic import TypeAdapter

from app.aio import retry_store
from app.permissions.rules import Permissions, Thing
from app.runs.model import ChannelChange, Run
from app.runs.options import (
    NO_REPO,
    Defaults,
    MessageOptions,
    RunOptions,
    Scope,
    unknown_word,
)
from app.runs.ports import RunPorts
from app.runs.request import RunId, RunRequest, run_id_for
from app.runs.session import Session, session_id_for

_SHORTEST_STEM = 4
"""Of a word, to be looked for in its other forms."""
_BEFORE_CHARS = 80
"""In which a word is denied."""
PICK_WITHIN = timedelta(hours=1)
"""After the person was asked."""
PICKED = "repository"
"""In place of a click's ts, in the id of the run that follows a message's first question for a repository: there is one."""
MAX_FOLLOWERS = 50
"""Of a message that is edited again and again."""
MAX_CANDIDATES = 9
"""Of which people choose; all are among them up to there."""
_DENIED = re.compile(
    r"\b(?:not|no|never|but|without|except|unlike|(?:instead|rather|other)\s+(?:of|than)|\w+n['\u2019]t)\b(?:\W+\w+){0,3}\W*$",
    re.IGNORECASE,
)
"""Before a word: the message is perhaps about anything but that."""
_OF_A_REPOSITORY = re.compile(
    r"\b(?:repo(?:sitor(?:y|ies))?s?|code ?base|pull requests?|branch(?:es)?)\b|\bPRs?\b",
)
"""In a message that is about a repository, whichever that is."""


class Source(StrEnum):
    """Where a value comes from, for people."""

    MESSAGE = "message"
    THREAD = "thread"
    PERSON = "you"
    CHANNEL = "channel"
    RULE = "rule"
    FILE = "orion.toml"
    SETTING = "setting"
    DEFAULT = "default"


def _as_it_is(name: str) -> str:
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogAgent:
    model: str
    """Its model where nobody asks for another one."""
    source: Source = Source.DEFAULT
    """Of that model: the operator's setting, or the agent's own default."""
    models: tuple[str, ...] = ()
    """Those that may be asked for; empty = any name of a plausible form."""
    model_id: Callable[[str], str] = _as_it_is
    """`AgentAdapter.model_id`."""

    def allows(self, name: str) -> bool:
        """Whether people may ask for a model, by its id: the name may be an alias."""
        known = {self.model_id(one) for one in (*self.models, self.model)}
        return not self.models or self.model_id(name) in known


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryRule:
    """Says which repository a message is about that has one of these words in it."""

    words: tuple[str, ...]
    """Or several words each, in any case; with or without an `s` at the end."""
    repo: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """Lists the agents, models and sandboxes that this Orion is set up for."""

    agents: Mapping[str, CatalogAgent]
    agent: str
    """The operator's; one of `agents`."""
    sandboxes: Mapping[str, str]
    """Providers by the words of `SANDBOX_WORDS`."""
    provider: str
    """The operator's."""
    is_agent_set: bool = False
    """False: it is the default of the setting."""
    is_provider_set: bool = False
    channels: Mapping[str, RunOptions] = field(default_factory=dict)
    """What `orion.toml` says of them, by their ids."""
    rules: Mapping[str, Sequence[RepositoryRule]] = field(default_factory=dict)
    """By the ids of channels; those of the empty id are for all."""

    def rules_of(self, channel: str) -> Sequence[RepositoryRule]:
        return (*self.rules.get(channel, ()), *self.rules.get("", ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionContext:
    """Who asks where, with what was said before."""

    earlier: Sequence[Run] = ()
    """Those of its thread that were executed before, in order."""
    waiting: tuple[str, ...] = ()
    """Between which repositories somebody may still choose for a question asked before in the thread."""
    session: Session | None = None
    """Its thread's."""
    person: Defaults = field(default_factory=Defaults)
    channel: Defaults = field(default_factory=Defaults)
    file: RunOptions = field(default_factory=RunOptions)
    """The channel's table in `orion.toml`."""
    rules: Sequence[RepositoryRule] = ()
    """That count there."""
    text: str = field(default="", repr=False)
    """In which words are looked for; empty of a command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    value: str
    source: Source

    @property
    def is_said(self) -> bool:
        return self.source is Source.MESSAGE


_NOTHING = Chosen(value="", source=Source.DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """All that a run gets. Empty repository and branch: none."""

    agent: Chosen = _NOTHING
    model: Chosen = _NOTHING
    """By its id."""
    sandbox: Chosen = _NOTHING
    """The provider."""
    repo: Chosen = _NOTHING
    branch: Chosen = _NOTHING
    wants_pull_request: bool = False
    candidates: tuple[str, ...] = ()
    """Repositories of which one may be meant: the person has to say which. `repo` is empty then."""

    @property
    def chosen_model(self) -> str:
        """Returns the model if a person or a channel chose it; empty = it is the operator's, who may choose another one at any time."""
        operators = (Source.FILE, Source.SETTING, Source.DEFAULT)
        return "" if self.model.source in operators else self.model.value


_CHOICE = TypeAdapter(Choice)


def encode_choice(choice: Choice) -> str:
    """Returns it as JSON, for a record."""
    return _CHOICE.dump_json(choice).decode()


def decode_choice(text: str) -> Choice:
    """Returns what `encode_choice` was given."""
    return _CHOICE.validate_json(text)


@dataclass(frozen=True, slots=True)
class _Layer:
    source: Source
    options: RunOptions
    model_agent: str = ""
    """Whose its model is; empty = of whichever agent is chosen."""


def no_such_model(model: Chosen) -> str:
    """Returns what to say when its maker knows the model not, for the person who asked: lower case, no full stop."""
    begin = f"there is no model {model.value}"
    match model.source:
        case Source.PERSON:
            return f"{begin}, which is your default; write settings model=…, or settings reset"
        case Source.CHANNEL:
            return f"{begin}, this channel's default; write settings channel model=…, or settings channel reset"
        case Source.MESSAGE | Source.THREAD:
            return f"{begin}; ask for another with model=…"
        case _:
            return f"{begin}, which is configured; please ask the operator to choose another one"


def choose(said: RunOptions, context: SelectionContext, catalog: Catalog) -> Choice:
    """Returns what a message gets that says this; what is not in the catalog does not count."""
    layers = _layers(said, context, catalog)
    nowhere = len(layers)

    def first(name: str, known: Callable[[_Layer, str], bool]) -> tuple[int, str]:
        for place, layer in enumerate(layers):
            value = getattr(layer.options, name)
            if value and known(layer, value):
                return place, value
        return nowhere, ""

    def chosen(place: int, value: str, default: Chosen) -> Chosen:
        return default if place == nowhere else Chosen(value=value, source=layers[place].source)

    setting = Source.SETTING if catalog.is_agent_set else Source.DEFAULT
    agent = chosen(
        *first("agent", lambda _layer, name: name in catalog.agents),
        Chosen(value=catalog.agent, source=setting),
    )
    entry = catalog.agents[agent.value]
    place, model = first(
        "model",
        lambda layer, name: layer.model_agent in ("", agent.value) and entry.allows(name),
    )
    default_model = Chosen(value=entry.model_id(entry.model), source=entry.source)
    place_of_sandbox, word = first("sandbox", lambda _layer, name: name in catalog.sandboxes)
    place_of_repo, repo = first("repo", _any)
    place_of_branch, branch = first("branch", _any)
    if place_of_branch > place_of_repo:
        place_of_branch = nowhere
    nothing = Chosen(value="", source=Source.DEFAULT)
    chosen_repo = chosen(place_of_repo, "" if repo == NO_REPO else repo, nothing)
    meant: Sequence[str] = ()
    if chosen_repo.source not in (Source.MESSAGE, Source.THREAD):
        meant = find_repositories(said, context) or context.waiting
    if meant:
        is_open = len(meant) > 1
        chosen_repo = nothing if is_open else Chosen(value=meant[0], source=Source.RULE)
        place_of_branch = nowhere if place_of_branch > 0 else 0  # that was another one's
    where = Source.SETTING if catalog.is_provider_set else Source.DEFAULT
    return Choice(
        agent=agent,
        model=chosen(place, entry.model_id(model), default_model),
        sandbox=chosen(
            place_of_sandbox,
            catalog.sandboxes.get(word, ""),
            Chosen(value=catalog.provider, source=where),
        ),
        repo=chosen_repo,
        branch=chosen(place_of_branch, branch, nothing),
        candidates=tuple(meant) if len(meant) > 1 else (),
    )


def find_repositories(said: RunOptions, context: SelectionContext) -> tuple[str, ...]:
    """Returns which repositories a message may mean that names none as an option: one is meant; several = it is open which; none = rules say nothing.

    A repository is meant by a word of a rule, or by its whole name. It is open where that is true of several, and where something
    hints at another one than would be chosen: its bare name, a form of a rule's word, a word that is denied, an unknown
    repository of the same owner, the person's own default.
    """
    if not context.rules or not context.text.strip():
        return ()
    text = context.text
    defaults = [context.person.repo, context.channel.repo, context.file.repo]
    default = next((repo for repo in defaults if repo), "")
    named = dict.fromkeys([*(rule.repo for rule in context.rules), *defaults])
    known = [repo for repo in named if repo not in ("", NO_REPO)]
    words = {
        repo: [one for rule in context.rules if rule.repo == repo for one in rule.words]
        for repo in known
    }
    found = {repo: _is_meant(text, repo, words[repo]) for repo in known}
    meant = [repo for repo, is_meant in found.items() if is_meant]
    others = [repo for repo in known if repo not in meant and (meant or repo != default)]
    hinted = [repo for repo in others if re.search(_bare_name(repo), text, re.IGNORECASE)]
    if meant or default:
        hinted += [repo for repo in others if _has_form(text, words[repo])]
    if meant and context.person.repo and context.person.repo not in meant:
        hinted.append(context.person.repo)
    is_denied = False in found.values() or (
        not meant and default in known and _occurs(text, _bare_name(default)) is False
    )
    asks_for_one = bool(said.pr or _OF_A_REPOSITORY.search(text)) and not (meant or default)
    if asks_for_one or hinted or is_denied or _names_another(text, known):
        meant = list(dict.fromkeys([*meant, *hinted, *known, NO_REPO]))
    return tuple(meant[:MAX_CANDIDATES])


def _is_meant(text: str, repo: str, words: Sequence[str]) -> bool | None:
    """Whether a text has a repository's name or one of its words in it; None = it has not, False = all that are there may be denied."""
    plain = "|".join(re.escape(one).replace(r"\ ", r"\s+") for one in (repo, *words))
    bare = _bare_name(repo)
    pattern = (
        rf"(?<![\w.-])(?:{plain})(?:e?s|['\u2019]s)?(?![\w-])"
        rf"|\brepo(?:sitory)?\s+{bare}|{bare}\s+repo(?:sitory)?\b|\A\s*{bare}:"
    )
    return _occurs(text, pattern)


def _occurs(text: str, pattern: str) -> bool | None:
    """Whether a pattern is found; None = it is not, False = only where it may be denied."""
    found = [one.start() for one in re.finditer(pattern, text, re.IGNORECASE)]
    are_meant = [
        _DENIED.search(text[max(0, start - _BEFORE_CHARS) : start]) is None for start in found
    ]
    return any(are_meant) if are_meant else None


def _bare_name(repo: str) -> str:
    """Returns a pattern of a repository's name without its owner's."""
    name = repo.rstrip("/").rpartition("/")[2].removesuffix(".git")
    return rf"(?<![\w.-]){re.escape(name)}(?![\w-])"


def _has_form(text: str, words: Sequence[str]) -> bool:
    """Whether a text has something of a word in it, such as `invoicing` of `invoice`."""
    stems = [re.escape(word[:-1]) for word in words if len(word) > _SHORTEST_STEM]
    return bool(stems and re.search(rf"\b(?:{'|'.join(stems)})", text, re.IGNORECASE))


def _names_another(text: str, known: Sequence[str]) -> bool:
    """Whether a repository is named that no rule knows, of an owner that one does."""
    owners = "|".join(map(re.escape, dict.fromkeys(repo.rpartition("/")[0] for repo in known)))
    found = re.findall(rf"(?<![\w.-])((?:{owners})/[\w.-]*\w)", text, re.IGNORECASE)
    names = {repo.lower() for repo in known}
    return any(one.lower().removesuffix(".git") not in names for one in found)


def find_problem(said: RunOptions, agents: Mapping[str, CatalogAgent], agent: str = "") -> str:
    """Returns why this cannot be had here, for the person who asked; empty = it can.

    `agent`: whose the model would be, if that is known. Otherwise it only must be known to one of them.
    """
    if said.agent and said.agent not in agents:
        return unknown_word("agent", said.agent, sorted(agents))
    if not said.model:
        return ""
    named = agents.get(said.agent or agent)
    catalog = [named] if named is not None else list(agents.values())
    if not catalog or any(entry.allows(said.model) for entry in catalog):
        return ""
    known = {one for entry in catalog for one in (*entry.models, entry.model)}
    return unknown_word("model", said.model, sorted(known))


def _layers(said: RunOptions, context: SelectionContext, catalog: Catalog) -> Sequence[_Layer]:
    layers = [_Layer(Source.MESSAGE, said)]
    if context.session is not None:
        layers.append(
            _Layer(Source.THREAD, _options_of_session(context.session), context.session.agent)
        )
    layers += [
        _Layer(Source.THREAD, _options_of_run(run), run.agent) for run in reversed(context.earlier)
    ]
    layers.append(_Layer(Source.PERSON, context.person, context.person.model_agent))
    layers.append(_Layer(Source.CHANNEL, context.channel, context.channel.model_agent))
    layers.append(_Layer(Source.FILE, context.file, context.file.agent or catalog.agent))
    return layers


def _options_of_session(session: Session) -> RunOptions:
    """Returns what a thread's files are bound to, and the model of its agent."""
    return RunOptions(
        model=session.chosen_model,
        sandbox=session.provider,
        repo=session.repo,
        branch=session.base_branch,
    )


def _options_of_run(run: Run) -> RunOptions:
    """Returns what its thread keeps of an earlier run: what it said, and who answered."""
    said: MessageOptions = run.request.options
    return RunOptions(
        agent=run.agent,
        model=said.model,
        sandbox=said.sandbox,
        repo=said.repo,
        branch=said.branch,
    )


def _any(_layer: _Layer, _value: str) -> bool:
    return True


def why_not_chosen(choice: Choice, request: RunRequest, permissions: Permissions) -> str:
    """Returns why whoever asked may not have what was chosen for their message: lower case, no full stop; empty = they may."""
    wanted = {
        Thing.AGENTS: choice.agent.value,
        Thing.MODELS: choice.model.value,
        Thing.SANDBOXES: choice.sandbox.value,
        Thing.REPOSITORIES: choice.repo.value,
    }
    reasons = (
        permissions.why_not(thing, value, user=request.user, channel=request.channel)
        for thing, value in wanted.items()
    )
    return next(filter(None, reasons), "")


def channel_change(request: RunRequest) -> ChannelChange | None:
    """Returns what a message changes of its channel's defaults, at the moment that it was sent; None = nothing."""
    command = request.options.command
    if command is None or command.scope is not Scope.CHANNEL:
        return None
    said = " ".join(f"{name}={value}" for name, value in command.options.said.items())
    said = "reset" if command.is_reset else said
    if not said:
        return None
    return ChannelChange(
        run_id=request.run_id,
        team=request.team,
        channel=request.channel,
        user=request.user,
        at=request.asked_at,
        said=said,
    )


async def choose_for(run: Run, ports: RunPorts, catalog: Catalog) -> Choice:
    """Returns what the run gets."""
    options = run.request.options
    choice = choose(options, await context_of(run, ports, catalog), catalog)
    return replace(choice, wants_pull_request=bool(options.pr))


async def context_of(run: Run, ports: RunPorts, catalog: Catalog) -> SelectionContext:
    """Returns who asks where, with what was said before."""
    request, options = run.request, run.request.options
    before = await _before(run, ports)
    open_questions = await retry_store(lambda: OpenQuestions(ports).among(before))
    return SelectionContext(
        earlier=[other for other in before if other.attempt > 0],
        waiting=next((one.result.candidates for one in open_questions), ()),
        session=await retry_store(lambda: ports.sessions.get(session_id_for(run.thread))),
        person=await retry_store(lambda: ports.defaults.get(request.team, request.user)),
        channel=await retry_store(lambda: ports.defaults.get(request.team, request.channel)),
        file=catalog.channels.get(request.channel, RunOptions()),
        rules=catalog.rules_of(request.channel),
        text="" if request.is_command else "\n".join((options.prompt, *request.content.shared)),
    )


async def _before(run: Run, ports: RunPorts) -> Sequence[Run]:
    """Returns the runs of its thread that were asked for before it."""
    if run.request.is_root:
        return ()
    return [
        other
        for other in await retry_store(lambda: ports.store.of_thread(run.thread))
        if other.request.message_ts < run.request.message_ts
    ]


class OpenQuestions:
    """Questions for a repository. The run that asked is over; one run follows it, by a click, an edit or a stop, whichever comes first."""

    def __init__(self, ports: RunPorts) -> None:
        self._ports = ports

    async def newest(self, run: Run) -> Run:
        """Returns the run that stands for a message now: the last of those that follow its first."""
        for _ in range(MAX_FOLLOWERS):
            follower = (
                await self._ports.store.get(follower_id(run)) if run.result.candidates else None
            )
            if follower is None:
                break
            run = follower
        return run

    async def among(self, runs: Sequence[Run]) -> Sequence[Run]:
        """Returns those that have asked and wait for a click still."""
        waiting = [run for run in runs if self.is_in_time(run)]
        return [run for run in waiting if await self._ports.store.get(follower_id(run)) is None]

    def is_in_time(self, run: Run) -> bool:
        """Whether it has asked, not too long ago for a click."""
        asked_at = run.ended_at or run.request.asked_at
        return bool(run.result.candidates) and self._ports.clock.now() - asked_at <= PICK_WITHIN


def follower_id(asking: Run) -> RunId:
    """Returns the id of the one run that follows a question for a repository."""
    request = asking.request
    where = {"team": request.team, "channel": request.channel, "message_ts": request.message_ts}
    return run_id_for(**where, click=PICKED if asking.id == run_id_for(**where) else asking.id)

"""Which agent, model, provider, repository and branch a run gets, and from whom each comes; pure.

What the message says counts, else what its thread has, else the person's default, else the channel's, else the one of
`orion.toml`, else the settings'. A thread has the provider where its files are, its repository, and the agent and model that
answered last, whoever asked; what somebody else has for a default moves nothing. A model belongs to an agent, a branch to a repository: a choice of another one from nearer
by drops what was chosen for the first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import cast

from pydantic import TypeAdapter

from app.aio import retry_store
from app.errors import ErrorCode
from app.runs.model import ChannelChange, Outcome, Run, RunState
from app.runs.options import (
    NO_REPO,
    DefaultChanges,
    Defaults,
    MessageOptions,
    RunOptions,
    Scope,
    SettingsCommand,
    unknown_word,
)
from app.runs.ports import DefaultStore, RunPorts
from app.runs.request import RunRequest
from app.runs.session import Session, session_id_for


class Source(StrEnum):
    """Where a value comes from, for people."""

    MESSAGE = "message"
    THREAD = "thread"
    PERSON = "you"
    CHANNEL = "channel"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionContext:
    """Who asks where, with what was said before."""

    earlier: Sequence[Run] = ()
    """Those of its thread that were executed before, in order."""
    session: Session | None = None
    """Its thread's."""
    person: Defaults = field(default_factory=Defaults)
    channel: Defaults = field(default_factory=Defaults)
    file: RunOptions = field(default_factory=RunOptions)
    """The channel's table in `orion.toml`."""


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
    where = Source.SETTING if catalog.is_provider_set else Source.DEFAULT
    return Choice(
        agent=agent,
        model=chosen(place, entry.model_id(model), default_model),
        sandbox=chosen(
            place_of_sandbox,
            catalog.sandboxes.get(word, ""),
            Chosen(value=catalog.provider, source=where),
        ),
        repo=chosen(place_of_repo, "" if repo == NO_REPO else repo, nothing),
        branch=chosen(place_of_branch, branch, nothing),
    )


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
    has_repo = run.result.error_code is not ErrorCode.REPO_UNAVAILABLE
    return RunOptions(
        agent=run.agent,
        model=said.model,
        sandbox=said.sandbox,
        repo=said.repo if has_repo else "",
        branch=said.branch if has_repo else "",
    )


def _any(_layer: _Layer, _value: str) -> bool:
    return True


_DONE: Mapping[Scope, tuple[str, str]] = {
    Scope.PERSON: ("Your defaults are changed.", "Your defaults are forgotten."),
    Scope.CHANNEL: (
        "This channel's defaults are changed.",
        "This channel's defaults are forgotten.",
    ),
}
HELP = (
    "Yours: `settings agent=… model=… sandbox=… repo=… branch=…`; this channel's: `settings channel …`; "
    "forgotten by `settings reset` and `settings channel reset`; `repo=none` is for none. One message's own: the same words at its beginning."
)


def owner_of(request: RunRequest, scope: Scope) -> str:
    """Returns whose defaults they are: a person's or a channel's id."""
    return request.user if scope is Scope.PERSON else request.channel


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


def find_command_problem(
    command: SettingsCommand, context: SelectionContext, catalog: Catalog
) -> str:
    """Returns why these defaults cannot be set here; empty = they can."""
    options = command.options
    if options.pr:
        return "pr=yes is for one message, not a default"
    if options.sandbox and options.sandbox not in catalog.sandboxes:
        return unknown_word("sandbox", options.sandbox, catalog.sandboxes)
    own = context.person if command.scope is Scope.PERSON else context.channel
    if options.branch and (options.repo or own.repo) in ("", NO_REPO):
        return f"branch={options.branch} needs its repository: repo=owner/name"
    return find_problem(options, catalog.agents, _agent_of(command, context, catalog))


async def carry_out(
    command: SettingsCommand,
    request: RunRequest,
    store: DefaultStore,
    context: SelectionContext,
    catalog: Catalog,
) -> str:
    """Changes the defaults as told, and returns the sentence that says so; safe to repeat. Empty: it only asks."""
    changed, forgotten = _DONE[command.scope]
    owner = owner_of(request, command.scope)
    if command.is_reset:
        await store.reset(request.team, owner)
        return forgotten
    options = command.options
    if not options.said:
        return ""
    changes = dict(options.said)
    if options.model:
        changes["model_agent"] = _agent_of(command, context, catalog)
    if options.repo:
        changes.setdefault("branch", "")  # the one before was of another repository
    await store.change(request.team, owner, **cast("DefaultChanges", changes))
    return changed


def describe_choice(choice: Choice) -> str:
    """Returns what is chosen and from whom each comes, as a Markdown list."""
    values = {
        "agent": choice.agent,
        "model": choice.model,
        "sandbox": choice.sandbox,
        "repo": choice.repo,
        "branch": choice.branch,
    }
    return "\n".join(
        f"- {name}: {f'`{one.value}`' if one.value else 'none'} ({one.source})"
        for name, one in values.items()
    )


def render_choice(
    choice: Choice,
    said: str,
    *,
    own_keys: Sequence[str] = (),
    last_change: ChannelChange | None = None,
) -> str:
    """Returns the answer, as Markdown. `own_keys`: for which protocols the person has given one. `last_change`: of the channel's defaults."""
    lines = [describe_choice(choice)]
    if own_keys:
        lines.append(f"- keys for models: your own for {', '.join(own_keys)}, else Orion's")
    if last_change is not None:
        when = f"{last_change.at:%Y-%m-%d %H:%M} UTC"
        lines.append(
            f"- this channel's defaults: changed last by `{last_change.user}`, {when}: `{last_change.said}`"
        )
    return "\n\n".join(filter(None, (said, "\n".join(lines), HELP)))


def _agent_of(command: SettingsCommand, context: SelectionContext, catalog: Catalog) -> str:
    """Returns whose the model of new defaults is: of the agent beside it, else of the one that the owner has so far."""
    person = context.person if command.scope is Scope.PERSON else Defaults()
    own = SelectionContext(person=person, channel=context.channel, file=context.file)
    return choose(RunOptions(agent=command.options.agent), own, catalog).agent.value


async def choose_for(run: Run, ports: RunPorts, catalog: Catalog) -> Choice:
    """Returns what the run gets."""
    options = run.request.options
    choice = choose(options, await _context_of(run, ports, catalog), catalog)
    return replace(choice, wants_pull_request=bool(options.pr))


async def answer_without_agent(run: Run, ports: RunPorts, catalog: Catalog) -> Outcome | None:
    """Returns how the run ends if it needs no agent; None = it does. A command is carried out; safe to repeat."""
    request = run.request
    options = request.options
    command = options.command
    if command is None and not options.model and not options.branch:
        return None
    context = await _context_of(run, ports, catalog)
    choice = choose(options, context, catalog)
    problem = find_problem(options, catalog.agents, choice.agent.value)
    if options.branch and not choice.repo.value:
        problem = problem or f"branch={options.branch} needs its repository: repo=owner/name"
    if command is not None:
        problem = problem or find_command_problem(command, context, catalog)
    if problem:
        return Outcome(state=RunState.FAILED, error_code=ErrorCode.REQUEST_INVALID, detail=problem)
    if command is None:
        return None
    said = await retry_store(lambda: carry_out(command, request, ports.defaults, context, catalog))
    keys = await retry_store(lambda: ports.own_keys.of(request.team, request.user))
    last = await retry_store(lambda: ports.defaults.last_change(request.team, request.channel))
    return Outcome(
        state=RunState.SUCCEEDED,
        answer=render_choice(
            await choose_for(run, ports, catalog), said, own_keys=sorted(keys), last_change=last
        ),
    )


async def _context_of(run: Run, ports: RunPorts, catalog: Catalog) -> SelectionContext:
    request = run.request
    return SelectionContext(
        earlier=await _earlier(run, ports),
        session=await retry_store(lambda: ports.sessions.get(session_id_for(run.thread))),
        person=await retry_store(lambda: ports.defaults.get(request.team, request.user)),
        channel=await retry_store(lambda: ports.defaults.get(request.team, request.channel)),
        file=catalog.channels.get(request.channel, RunOptions()),
    )


async def _earlier(run: Run, ports: RunPorts) -> Sequence[Run]:
    """Returns the runs of its thread that were executed before it."""
    if run.request.thread_ts == run.request.message_ts:
        return ()
    return [
        other
        for other in await retry_store(lambda: ports.store.of_thread(run.thread))
        if other.attempt > 0 and other.request.message_ts < run.request.message_ts
    ]

"""Which agent, model, provider, repository and branch a run gets, and from whom each comes; pure.

The message's wish counts, else what its thread has, else the person's default, else the channel's, else the one of
`orion.toml`, else the settings'. A thread has the provider where its files are, its repository, and the agent and model that
answered last, whoever asked; what somebody else has for a default moves nothing. A model belongs to an agent, a branch to a repository: a choice of another one from nearer
by drops what was chosen for the first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from app.errors import ErrorCode
from app.runs.defaults import Defaults
from app.runs.model import Run
from app.runs.option_values import NO_REPO, unknown_word
from app.runs.options import Options, Wishes
from app.runs.session import Session


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
class AgentOffer:
    """An agent that can be asked for here."""

    model: str
    """Its model where nobody asks for another one."""
    source: Source = Source.DEFAULT
    """Of that model: the operator's setting, or the agent's own default."""
    models: tuple[str, ...] = ()
    """Those that may be asked for; empty = any name of a plausible form."""
    model_id: Callable[[str], str] = _as_it_is
    """`AgentAdapter.model_id`."""

    def allows(self, name: str) -> bool:
        """By its id: the name may be an alias."""
        known = {self.model_id(one) for one in (*self.models, self.model)}
        return not self.models or self.model_id(name) in known


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """What this Orion is set up for."""

    agents: Mapping[str, AgentOffer]
    agent: str
    """The operator's; one of `agents`."""
    sandboxes: Mapping[str, str]
    """Providers by the words of `SANDBOX_WORDS`."""
    provider: str
    """The operator's."""
    is_agent_set: bool = False
    """False: it is the default of the setting."""
    is_provider_set: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """Who asks where, with what was said before."""

    earlier: Sequence[Run] = ()
    """Those of its thread that were executed before, in order."""
    session: Session | None = None
    """Its thread's."""
    person: Defaults = field(default_factory=Defaults)
    channel: Defaults = field(default_factory=Defaults)
    file: Wishes = field(default_factory=Wishes)
    """The channel's table in `orion.toml`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    value: str
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """All that a run gets. Empty repository and branch: none."""

    agent: Chosen
    model: Chosen
    """By its id."""
    sandbox: Chosen
    """The provider."""
    repo: Chosen
    branch: Chosen

    @property
    def chosen_model(self) -> str:
        """If a person or a channel chose it; empty = it is the operator's, who may choose another one at any time."""
        operators = (Source.FILE, Source.SETTING, Source.DEFAULT)
        return "" if self.model.source in operators else self.model.value


@dataclass(frozen=True, slots=True)
class _Layer:
    source: Source
    wishes: Wishes
    model_agent: str = ""
    """Whose its model is; empty = of whichever agent is chosen."""


def no_such_model(model: Chosen) -> str:
    """What to say when its maker knows it not, for the person who asked: lower case, no full stop."""
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


def choose(said: Wishes, around: Circumstances, offers: Offers) -> Choice:
    """What a message gets that says this; what is not offered here does not count."""
    layers = _layers(said, around, offers)
    nowhere = len(layers)

    def first(name: str, known: Callable[[_Layer, str], bool]) -> tuple[int, str]:
        for place, layer in enumerate(layers):
            value = getattr(layer.wishes, name)
            if value and known(layer, value):
                return place, value
        return nowhere, ""

    def chosen(place: int, value: str, default: Chosen) -> Chosen:
        return default if place == nowhere else Chosen(value=value, source=layers[place].source)

    setting = Source.SETTING if offers.is_agent_set else Source.DEFAULT
    agent = chosen(
        *first("agent", lambda _layer, name: name in offers.agents),
        Chosen(value=offers.agent, source=setting),
    )
    offer = offers.agents[agent.value]
    place, model = first(
        "model",
        lambda layer, name: layer.model_agent in ("", agent.value) and offer.allows(name),
    )
    default_model = Chosen(value=offer.model_id(offer.model), source=offer.source)
    place_of_sandbox, word = first("sandbox", lambda _layer, name: name in offers.sandboxes)
    place_of_repo, repo = first("repo", _any)
    place_of_branch, branch = first("branch", _any)
    if place_of_branch > place_of_repo:
        place_of_branch = nowhere
    nothing = Chosen(value="", source=Source.DEFAULT)
    where = Source.SETTING if offers.is_provider_set else Source.DEFAULT
    return Choice(
        agent=agent,
        model=chosen(place, offer.model_id(model), default_model),
        sandbox=chosen(
            place_of_sandbox,
            offers.sandboxes.get(word, ""),
            Chosen(value=offers.provider, source=where),
        ),
        repo=chosen(place_of_repo, "" if repo == NO_REPO else repo, nothing),
        branch=chosen(place_of_branch, branch, nothing),
    )


def find_problem(said: Wishes, agents: Mapping[str, AgentOffer], agent: str = "") -> str:
    """Why this cannot be had here, for the person who asked; empty = it can.

    `agent`: whose the model would be, if that is known. Otherwise it only must be known to one of them.
    """
    if said.agent and said.agent not in agents:
        return unknown_word("agent", said.agent, sorted(agents))
    if not said.model:
        return ""
    named = agents.get(said.agent or agent)
    offers = [named] if named is not None else list(agents.values())
    if not offers or any(offer.allows(said.model) for offer in offers):
        return ""
    known = {one for offer in offers for one in (*offer.models, offer.model)}
    return unknown_word("model", said.model, sorted(known))


def _layers(said: Wishes, around: Circumstances, offers: Offers) -> Sequence[_Layer]:
    layers = [_Layer(Source.MESSAGE, said)]
    if around.session is not None:
        layers.append(_Layer(Source.THREAD, _held(around.session), around.session.agent))
    layers += [_Layer(Source.THREAD, _kept(run), run.agent) for run in reversed(around.earlier)]
    layers.append(_Layer(Source.PERSON, around.person, around.person.model_agent))
    layers.append(_Layer(Source.CHANNEL, around.channel, around.channel.model_agent))
    layers.append(_Layer(Source.FILE, around.file, around.file.agent or offers.agent))
    return layers


def _held(session: Session) -> Wishes:
    """What a thread's files are bound to, and the model of its agent."""
    return Wishes(
        model=session.chosen_model,
        sandbox=session.provider,
        repo=session.repo,
        branch=session.base_branch,
    )


def _kept(run: Run) -> Wishes:
    """What its thread keeps of an earlier run: what it said, and who answered."""
    said: Options = run.request.options
    has_repo = run.error_code is not ErrorCode.REPO_UNAVAILABLE
    return Wishes(
        agent=run.agent,
        model=said.model,
        sandbox=said.sandbox,
        repo=said.repo if has_repo else "",
        branch=said.branch if has_repo else "",
    )


def _any(_layer: _Layer, _value: str) -> bool:
    return True

"""Orion's own answer to `settings`: what a message would get here and from whom; and the change of defaults."""

from collections.abc import Mapping, Sequence
from typing import cast

from app.runs.choice import Choice, Circumstances, Offers, choose, find_problem
from app.runs.defaults import DefaultChanges, Defaults, DefaultStore
from app.runs.model import RunRequest
from app.runs.option_values import NO_REPO, unknown_word
from app.runs.options import Scope, SettingsCommand, Wishes

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
    """Whose defaults they are: a person's or a channel's id."""
    return request.user if scope is Scope.PERSON else request.channel


def find_command_problem(command: SettingsCommand, around: Circumstances, offers: Offers) -> str:
    """Why these defaults cannot be set here; empty = they can."""
    wishes = command.wishes
    if wishes.pr:
        return "pr=yes is for one message, not a default"
    if wishes.sandbox and wishes.sandbox not in offers.sandboxes:
        return unknown_word("sandbox", wishes.sandbox, offers.sandboxes)
    own = around.person if command.scope is Scope.PERSON else around.channel
    if wishes.branch and (wishes.repo or own.repo) in ("", NO_REPO):
        return f"branch={wishes.branch} needs its repository: repo=owner/name"
    return find_problem(wishes, offers.agents, _agent_of(command, around, offers))


async def carry_out(
    command: SettingsCommand,
    request: RunRequest,
    store: DefaultStore,
    around: Circumstances,
    offers: Offers,
) -> str:
    """Change the defaults as told, and give the sentence that says so; safe to repeat. Empty: it only asks."""
    changed, forgotten = _DONE[command.scope]
    owner = owner_of(request, command.scope)
    if command.is_reset:
        await store.reset(request.team, owner)
        return forgotten
    wishes = command.wishes
    if not wishes.said:
        return ""
    changes = dict(wishes.said)
    if wishes.model:
        changes["model_agent"] = _agent_of(command, around, offers)
    if wishes.repo:
        changes.setdefault("branch", "")  # the one before was of another repository
    await store.change(request.team, owner, **cast("DefaultChanges", changes))
    return changed


def render_choice(choice: Choice, said: str, *, own_keys: Sequence[str] = ()) -> str:
    """The answer, as Markdown. `own_keys`: for which protocols the person has given one."""
    values = {
        "agent": choice.agent,
        "model": choice.model,
        "sandbox": choice.sandbox,
        "repo": choice.repo,
        "branch": choice.branch,
    }
    lines = [
        f"- {name}: {f'`{one.value}`' if one.value else 'none'} ({one.source})"
        for name, one in values.items()
    ]
    if own_keys:
        lines.append(f"- keys for models: your own for {', '.join(own_keys)}, else Orion's")
    return "\n\n".join(filter(None, (said, "\n".join(lines), HELP)))


def _agent_of(command: SettingsCommand, around: Circumstances, offers: Offers) -> str:
    """Whose the model of new defaults is: of the agent beside it, else of the one that the owner has so far."""
    person = around.person if command.scope is Scope.PERSON else Defaults()
    own = Circumstances(person=person, channel=around.channel, file=around.file)
    return choose(Wishes(agent=command.wishes.agent), own, offers).agent.value

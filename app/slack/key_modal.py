"""The modal in which people give Orion keys of their own: no message, and nobody else, ever holds them."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.log import get_logger
from app.runs.ports import BUTTON, OwnKeyStore
from app.slack.api import SlackApi, SlackFault, within
from app.slack.blocks import as_sentence
from app.slack.fields import object_of
from app.slack.signature import is_id

KEYS_VIEW: Final = "orion_keys"
OPEN_TIMEOUT_S: Final = 2.0
"""For all that comes before the acknowledgement: after 3 s the click has failed, and its trigger is dead.

Source: Slack, "Modals", `trigger_id`, read 2026-11.
"""
MAX_KEY_CHARS: Final = 500
_INPUT: Final = "key"
_REMOVAL: Final = "forget"
_SHOWN_CHARS: Final = 4
_SAYING: Final = (
    "Your requests, and nobody else's, are answered with these instead of Orion's keys, and are not counted in its budgets. "
    "They are kept encrypted, cannot be read back, and never enter a sandbox."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """Names a vendor whose models one key opens."""

    name: str
    find_problem: Callable[[str], str]
    """What is wrong with a key, without its value; empty when nothing is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Person:
    team: str
    id: str


class KeyModal:
    """Opens the modal, and takes what was written into it."""

    def __init__(
        self,
        api: SlackApi,
        *,
        store: OwnKeyStore,
        vendors: Mapping[str, Vendor],
        open_timeout_s: float = OPEN_TIMEOUT_S,
    ) -> None:
        """`vendors`: by the names of protocols."""
        self._api = api
        self._open_timeout_s = open_timeout_s
        self._store = store
        self._vendors = vendors
        self._log = get_logger(__name__)

    async def show(self, body: Mapping[str, Any]) -> None:
        """Opens the modal for the person who clicked the button. Raises: TimeoutError: the database is sick."""
        person, trigger = _person(body), body.get("trigger_id")
        if person is None or not isinstance(trigger, str):
            self._log.info("event.ignored", reason="not_for_keys")
            return
        deadline_s = asyncio.get_running_loop().time() + self._open_timeout_s
        async with asyncio.timeout_at(deadline_s):
            kept = await self._store.of(person.team, person.id)
        try:
            async with within(deadline_s - asyncio.get_running_loop().time()):
                await self._api.once(
                    "views.open", {"trigger_id": trigger, "view": self._modal(kept)}
                )
        except SlackFault as exc:
            self._log.warning("slack.update_failed", operation="modal", error=exc.word)

    async def save(self, body: Mapping[str, Any]) -> Mapping[str, str]:
        """Keeps what the modal was sent with; returns what is wrong instead, by block ids, for the person to correct.

        Raises:
            TimeoutError: the database is sick; nothing is acknowledged, and the person sees that it did not work.
        """
        person = _person(body)
        if person is None:
            return {next(iter(self._vendors)): "This is for members of this workspace."}
        values = _values(body)
        written = {
            protocol: key
            for protocol in self._vendors
            if (key := str(values.get(protocol, {}).get(_INPUT, {}).get("value") or "").strip())
        }
        problems = {
            protocol: as_sentence(problem)
            for protocol, key in written.items()
            if (problem := self._vendors[protocol].find_problem(key))
        }
        if problems:
            return problems
        chosen = values.get(_REMOVAL, {}).get(_REMOVAL, {}).get("selected_options")
        options = chosen if isinstance(chosen, list) else []
        removed = [one.get("value") for one in options if isinstance(one, dict)]
        changes = {name: "" for name in self._vendors if name in removed} | written
        async with asyncio.timeout(self._open_timeout_s):
            await self._store.change(person.team, person.id, changes)
        self._log.info(
            "own_keys.changed",
            user=person.id,
            kept=sorted(written),
            removed=sorted(set(changes) - set(written)),
        )
        return {}

    def _modal(self, kept: Mapping[str, str]) -> Mapping[str, Any]:
        blocks = [
            {"type": "section", "text": {"type": "mrkdwn", "text": _SAYING}},
            *(self._input(protocol, kept.get(protocol)) for protocol in self._vendors),
        ]
        if options := [self._option(protocol) for protocol in self._vendors if protocol in kept]:
            element = {"type": "checkboxes", "action_id": _REMOVAL, "options": options}
            blocks.append(_input_block(_REMOVAL, "Take back", element))
        return {
            "type": "modal",
            "callback_id": KEYS_VIEW,
            "title": _plain(BUTTON),
            "submit": _plain("Save"),
            "close": _plain("Cancel"),
            "blocks": blocks,
        }

    def _input(self, protocol: str, kept: str | None) -> Mapping[str, Any]:
        element = {
            "type": "plain_text_input",
            "action_id": _INPUT,
            "max_length": MAX_KEY_CHARS,
        }
        block = _input_block(protocol, self._vendors[protocol].name, element)
        return block if kept is None else {**block, "hint": _plain(_hint(kept))}

    def _option(self, protocol: str) -> Mapping[str, Any]:
        return {"text": _plain(self._vendors[protocol].name), "value": protocol}


def _hint(kept: str) -> str:
    if not kept:
        return "The one that you gave cannot be read any more: give it again, or take it back."
    return f"There is one that ends in {kept[-_SHOWN_CHARS:]}; it stays if you write none."


def _input_block(block_id: str, label: str, element: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "input",
        "block_id": block_id,
        "optional": True,
        "label": _plain(label),
        "element": element,
    }


def _plain(text: str) -> Mapping[str, str]:
    return {"type": "plain_text", "text": text}


def _person(body: Mapping[str, Any]) -> _Person | None:
    """Returns who clicked or sent; None for people of other companies, as Orion's requests know them by its own workspace only."""
    user, team = object_of(body, "user"), object_of(body, "team")
    is_member = user.get("team_id") in (None, team.get("id"))
    if not is_member or not is_id(user.get("id")) or not is_id(team.get("id")):
        return None
    return _Person(team=str(team["id"]), id=str(user["id"]))


def _values(body: Mapping[str, Any]) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Returns values by block ids and action ids; without what is no object."""
    blocks = object_of(object_of(object_of(body, "view"), "state"), "values")
    return {
        block: {name: one for name, one in actions.items() if isinstance(one, dict)}
        for block, actions in blocks.items()
        if isinstance(actions, dict)
    }

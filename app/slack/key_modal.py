"""The modal in which people give Orion keys of their own: no message, and nobody else, ever holds them."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from app.audit.records import Act, AuditEntry, AuditLog
from app.log import get_logger
from app.runs.ports import BUTTON, OwnKeyStore
from app.slack.api import SlackApi
from app.slack.blocks import as_sentence
from app.slack.fields import object_of, text_of
from app.slack.modals import (
    OPEN_TIMEOUT_S,
    input_block,
    member_of,
    open_modal,
    plain,
    values_of,
)

KEYS_VIEW: Final = "orion_keys"
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


class KeyModal:
    """Opens the modal, and takes what was written into it."""

    def __init__(
        self,
        api: SlackApi,
        *,
        store: OwnKeyStore,
        audit: AuditLog,
        vendors: Mapping[str, Vendor],
        open_timeout_s: float = OPEN_TIMEOUT_S,
    ) -> None:
        """`vendors`: by the names of protocols."""
        self._audit = audit
        self._api = api
        self._open_timeout_s = open_timeout_s
        self._store = store
        self._vendors = vendors
        self._log = get_logger(__name__)

    async def show(self, body: Mapping[str, Any]) -> None:
        """Opens the modal for the person who clicked the button. Raises: TimeoutError: the database is sick."""
        person, trigger = member_of(body), body.get("trigger_id")
        if person is None or not isinstance(trigger, str):
            self._log.info("event.ignored", reason="not_for_keys")
            return
        deadline_s = asyncio.get_running_loop().time() + self._open_timeout_s
        async with asyncio.timeout_at(deadline_s):
            kept = await self._store.of(person.team, person.id)
        rest_s = deadline_s - asyncio.get_running_loop().time()
        await open_modal(self._api, body, self._modal(kept), timeout_s=rest_s)

    async def save(self, body: Mapping[str, Any]) -> Mapping[str, str]:
        """Keeps what the modal was sent with; returns what is wrong instead, by block ids, for the person to correct.

        Raises:
            TimeoutError: the database is sick; nothing is acknowledged, and the person sees that it did not work.
        """
        person = member_of(body)
        if person is None:
            return {next(iter(self._vendors)): "This is for members of this workspace."}
        values = values_of(body)
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
        kept, gone = sorted(written), sorted(set(changes) - set(written))
        said = [
            f"{word} {', '.join(names)}"
            for word, names in {"gave": kept, "took back": gone}.items()
            if names
        ]
        entry = AuditEntry(
            id=f"{text_of(object_of(body, 'view'), 'id')}:{Act.OWN_KEYS}:{person.id}",
            at=datetime.now(UTC),
            team=person.team,
            channel="",
            user=person.id,
            act=Act.OWN_KEYS,
            target="; ".join(said),
            is_allowed=True,
            reason="keys of their own",
            run_id="",
        )
        async with asyncio.timeout(self._open_timeout_s):
            if said:
                await self._audit.add(entry)
            await self._store.change(person.team, person.id, changes)
        self._log.info(
            "own_keys.changed",
            user=person.id,
            kept=kept,
            removed=gone,
        )
        return {}

    def _modal(self, kept: Mapping[str, str]) -> Mapping[str, Any]:
        blocks = [
            {"type": "section", "text": {"type": "mrkdwn", "text": _SAYING}},
            *(self._input(protocol, kept.get(protocol)) for protocol in self._vendors),
        ]
        if options := [self._option(protocol) for protocol in self._vendors if protocol in kept]:
            element = {"type": "checkboxes", "action_id": _REMOVAL, "options": options}
            blocks.append(input_block(_REMOVAL, "Take back", element))
        return {
            "type": "modal",
            "callback_id": KEYS_VIEW,
            "title": plain(BUTTON),
            "submit": plain("Save"),
            "close": plain("Cancel"),
            "blocks": blocks,
        }

    def _input(self, protocol: str, kept: str | None) -> Mapping[str, Any]:
        element = {
            "type": "plain_text_input",
            "action_id": _INPUT,
            "max_length": MAX_KEY_CHARS,
        }
        block = input_block(protocol, self._vendors[protocol].name, element)
        return block if kept is None else {**block, "hint": plain(_hint(kept))}

    def _option(self, protocol: str) -> Mapping[str, Any]:
        return {"text": plain(self._vendors[protocol].name), "value": protocol}


def _hint(kept: str) -> str:
    if not kept:
        return "The one that you gave cannot be read any more: give it again, or take it back."
    return f"There is one that ends in {kept[-_SHOWN_CHARS:]}; it stays if you write none."

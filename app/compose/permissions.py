"""Keeps who may do what as `orion.toml` and Slack have it, while Orion runs."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from app.log import get_logger
from app.permissions.rules import PermissionRule, Permissions
from app.settings.group import SettingsError
from app.settings.orion_toml import OrionToml, load_orion_toml
from app.settings.permissions import find_unreached, is_slack_group
from app.settings.toml_lines import place_of

LOOK_S: Final = 2.0
"""Between two looks whether the file has changed."""
ASK_S: Final = 4.0
"""Between two questions for a user group's members: 15 a minute. Source: Slack Web API, usergroups.users.list, Tier 2, 20 a minute, read 2026-11."""
COUNT_S: Final = 5.0
"""Between two times that it is written which rules have decided."""
COUNT_TIMEOUT_S: Final = 2.0
FIRST_S: Final = 5.0
"""For the members of all groups, before anything is heard."""
NEW_S: Final = 2.5
"""For those of groups that are new to the file, before its rules count, which they do within five seconds of the change."""
MembersOf = Callable[[str], Awaitable[frozenset[str] | None]]
"""Returns the members of a user group of Slack's; None when Slack does not tell them. Raises: ConnectionError: not now."""
FindProblems = Callable[[Sequence[PermissionRule]], Sequence[str]]
"""Returns why rules cannot be kept as everything else is set, as lines."""
CountRules = Callable[[Mapping[str, int]], Awaitable[None]]
"""Adds to how often rules have decided, by their words. Raises: OSError: not now."""
_log = get_logger(__name__)


class PermissionWatch:
    """One for a process."""

    def __init__(
        self,
        permissions: Permissions,
        toml: OrionToml,
        *,
        members_of: MembersOf,
        count_rules: CountRules,
        find_problems: FindProblems,
    ) -> None:
        self._permissions = permissions
        self._members_of = members_of
        self._count_rules = count_rules
        self._find_problems = find_problems
        self._path = toml.path
        self._seen = _state_of(toml.path)
        self._groups: Mapping[str, Sequence[str]] = toml.groups
        self._of_slack: dict[str, frozenset[str]] = {}
        """Members of user groups by their ids, as Slack told last."""

    async def load(self) -> None:
        """Asks Slack for the members of all groups, once; who is not told within `FIRST_S` is asked for later."""
        await self._ask_all(self._asked, within_s=FIRST_S)

    async def watch_file_forever(self) -> None:
        """Takes up what changes in the file, until cancelled. A mistake changes nothing and is in the log."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def count_forever(self) -> None:
        """Writes which rules have decided, until cancelled."""
        while True:
            await asyncio.sleep(COUNT_S)
            await self.count()

    async def ask_forever(self) -> None:
        """Asks Slack for the members of one group after the other, until cancelled."""
        while True:
            for group in self._asked or ("",):
                await asyncio.sleep(ASK_S)
                if group:
                    await self._ask(group)

    async def ask_for(self, group: str) -> None:
        """Asks at once for the members of a group that Slack says has changed."""
        if group in self._asked:
            await self._ask(group)

    async def count(self) -> None:
        """Writes which rules have decided. Never raises: they are for the operator, and a few more or less do not matter."""
        if decided := self._permissions.take_decided():
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(COUNT_TIMEOUT_S):
                    await self._count_rules(decided)

    async def look(self) -> None:
        """Takes up what has changed in the file since the last look. Groups that are new there are asked for first, within `NEW_S`: a rule may restrict them."""
        state = _state_of(self._path)
        if self._path is None or state == self._seen:
            return
        self._seen = state
        toml = self._read(self._path)
        if toml is None:
            return
        new = [one for one in _slack_groups(toml.groups) if one not in self._asked]
        await self._ask_all(new, within_s=NEW_S)
        self._groups = toml.groups
        for name in toml.groups:
            self._tell(name)
        self._permissions.set_rules(toml.permissions)
        _log.info("permissions.changed", rules=len(toml.permissions), groups=len(toml.groups))

    def _read(self, path: Path) -> OrionToml | None:
        """Returns the file; None, and why in the log, where it has a mistake."""
        try:
            toml = load_orion_toml(path)
        except SettingsError as exc:
            _log.warning("permissions.unread", reason=str(exc))
            return None
        if problems := [
            *(f"{place_of(path, place)} {one}" for place, one in find_unreached(toml.permissions)),
            *self._find_problems(toml.permissions),
        ]:
            _log.warning("permissions.unread", reason="; ".join(problems))
            return None
        return toml

    @property
    def _asked(self) -> Sequence[str]:
        return _slack_groups(self._groups)

    async def _ask_all(self, groups: Sequence[str], *, within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s):
                for group in groups:
                    await self._ask(group)
        except TimeoutError:
            _log.warning("permissions.group_unknown", reason="Slack does not answer")

    async def _ask(self, group: str) -> None:
        try:
            members = await self._members_of(group)
        except ConnectionError as exc:  # as it was, until it answers
            _log.info("permissions.group_unknown", group=group, reason=str(exc))
            return
        if members is None or members == self._of_slack.get(group):
            return
        self._of_slack[group] = members
        for name, listed in self._groups.items():
            if group in listed:
                self._tell(name)

    def _tell(self, name: str) -> None:
        """Tells the members of a group by what the file and Slack say."""
        members: set[str] = set()
        for one in self._groups[name]:
            members |= self._of_slack.get(one, frozenset()) if is_slack_group(one) else {one}
        self._permissions.set_members(name, members)


def _slack_groups(groups: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Returns the ids of Slack's user groups among the members of groups, each once."""
    found = (one for members in groups.values() for one in members if is_slack_group(one))
    return tuple(dict.fromkeys(found))


def _state_of(path: Path | None) -> tuple[int, int] | None:
    """Returns what changes when a file does; None for one that is not there."""
    try:
        found = path.stat() if path is not None else None
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size) if found is not None else None

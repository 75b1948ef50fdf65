"""What changes in the file and at Slack counts, and what is wrong there changes nothing."""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app.compose.budgets import find_problems
from app.compose.permissions import LOOK_S, NEW_S, PermissionWatch
from app.compose.policy import create_permissions
from app.permissions.rules import PermissionRule, Permissions, Right, Thing
from app.settings.group import SettingsError
from app.settings.settings import load_settings

RULES = """
[groups]
static = ["U01"]
oncall = ["S0ONCALL", "U07"]

[[permissions]]
who = ["static", "oncall"]
use = false
"""


class Slack:
    """Tells the members of user groups, or fails."""

    def __init__(self) -> None:
        self.members: dict[str, frozenset[str] | Exception | None] = {}
        self.asked: list[str] = []
        self.decided: Counter[str] = Counter()
        self.before_answer: Callable[[], None] = lambda: None
        self.answers_after_s = 0.0

    async def members_of(self, group: str) -> frozenset[str] | None:
        self.asked.append(group)
        await asyncio.sleep(self.answers_after_s)
        self.before_answer()
        found = self.members.get(group)
        if isinstance(found, Exception):
            raise found
        return found

    async def count(self, decided: Mapping[str, int]) -> None:
        """Is the store's."""
        self.decided.update(decided)


@pytest.fixture
def slack() -> Slack:
    return Slack()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "orion.toml"
    path.write_text(RULES)
    return path


def watch_of(path: Path, slack: Slack) -> tuple[Permissions, PermissionWatch]:
    settings = load_settings(env_file=None, given={"anthropic_api_key": "sk-ant-x"}, toml=path)
    permissions = create_permissions(settings)
    watch = PermissionWatch(
        permissions,
        settings.toml,
        members_of=slack.members_of,
        count_rules=slack.count,
        find_problems=partial(find_problems, settings),
    )
    return permissions, watch


def forbidden(permissions: Permissions) -> Callable[[], set[str]]:
    people = ("U01", "U02", "U03", "U07")
    return lambda: {one for one in people if permissions.forbids(Right.USE, user=one, channel="C1")}


def write(path: Path, text: str) -> None:
    before = path.stat().st_mtime_ns
    path.write_text(text)
    os.utime(path, ns=(before + 1, before + 1))


async def test_members_are_asked_for_and_told_again(path: Path, slack: Slack) -> None:
    """Slack's and the file's together; what Slack does not tell stays as it was."""
    permissions, watch = watch_of(path, slack)
    found = forbidden(permissions)
    assert found() == {"U01", "U07"}
    slack.members["S0ONCALL"] = frozenset({"U02"})
    await watch.load()
    assert found() == {"U01", "U02", "U07"}
    for failure in (ConnectionError("gone"), None):
        slack.members["S0ONCALL"] = failure
        await watch.ask_for("S0ONCALL")
        assert found() == {"U01", "U02", "U07"}
    slack.members["S0ONCALL"] = frozenset({"U03"})
    await watch.ask_for("S0ONCALL")
    assert found() == {"U01", "U03", "U07"}
    await watch.ask_for("S0OTHER")
    assert set(slack.asked) == {"S0ONCALL"}


async def test_a_changed_file_counts_and_one_with_a_mistake_does_not(
    path: Path, slack: Slack
) -> None:
    permissions, watch = watch_of(path, slack)
    found = forbidden(permissions)
    await watch.look()
    slack.members["S0ONCALL"] = frozenset({"U02"})
    await watch.load()
    for mistake in (
        RULES.replace("use", "us"),
        RULES.replace('"static", ', '"statik", '),
        RULES + '[[permissions]]\nwho = "static"\nuse = true',
        "[[permissions",
        RULES.replace("use = false", "budget_day_usd = 3"),  # no model has a price
    ):
        write(path, mistake)
        with capture_logs() as logs:
            await watch.look()
            await watch.look()
        assert [one["event"] for one in logs] == ["permissions.unread"]
        assert found() == {"U01", "U02", "U07"}
    write(path, RULES.replace('static = ["U01"]', 'static = ["U03"]'))
    await watch.look()
    assert found() == {"U02", "U03", "U07"}
    write(path, "")
    await watch.look()
    assert found() == set()


NEW = RULES.replace('"S0ONCALL", ', '"S0ONCALL", "S0NEW", ')


async def test_a_group_that_is_new_to_the_file_is_asked_for_before_its_rules_count(
    path: Path, slack: Slack
) -> None:
    """Else the rule that restricts it would let all of it through until its turn comes; those that were there have theirs."""
    permissions, watch = watch_of(path, slack)
    found = forbidden(permissions)
    slack.members = {"S0ONCALL": frozenset({"U02"}), "S0NEW": frozenset({"U03"})}
    await watch.load()
    write(path, NEW)
    slack.before_answer = lambda: seen.append(found())
    seen: list[set[str]] = []
    await watch.look()
    assert seen == [{"U01", "U02", "U07"}]
    assert found() == {"U01", "U02", "U03", "U07"}
    assert slack.asked == ["S0ONCALL", "S0NEW"]


@pytest.mark.long
async def test_rules_wait_for_slack_no_longer_than_they_may(path: Path, slack: Slack) -> None:
    """Where it does not answer they count all the same, about those who are known; its turn comes later."""
    assert LOOK_S + NEW_S < 5.0
    permissions, watch = watch_of(path, slack)
    found = forbidden(permissions)
    slack.members["S0NEW"] = frozenset({"U03"})
    slack.answers_after_s = 60
    write(path, NEW.replace('static = ["U01"]', 'static = ["U02"]'))
    with capture_logs() as logs:
        await watch.look()
    assert [one["event"] for one in logs] == ["permissions.group_unknown", "permissions.changed"]
    assert found() == {"U02", "U07"}
    slack.answers_after_s = 0
    await watch.ask_for("S0NEW")
    assert found() == {"U02", "U03", "U07"}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            '"static", ',
            '"statik", ',
            "line 7: permissions[0].who: 'statik' is neither a group nor the id of a person, such as U012AB3CD; did you mean static?",
        ),
        ("use = false", "us = false", "permissions[0].us: no such key; did you mean use?"),
        ("use = false", "", "says nothing; there are: agents,"),
        ("use = false", "use = 3", "permissions[0].use"),
        ("use = false", "budget_day_usd = 0", "permissions[0].budget_day_usd"),
        (
            "use = false",
            'use = false\nchannels = ["general"]',
            "neither dm nor the id of a channel",
        ),
        ('static = ["U01"]', 'static = ["C1"]', "neither a person (U…) nor a user group (S…)"),
        ('static = ["U01"]', 'Static = ["U01"]', "a group has a name of small letters"),
        ('static = ["U01"]', 'everyone = ["U01"]', "none that means something else"),
        ("use = false", 'agents = "cladue"', "'cladue' is no agent; did you mean claude?"),
        ("use = false", 'agents = ["claude", "x*"]', "'x*' is no agent; known: "),
        ("use = false", 'sandboxes = "dokcer"', "no provider of sandboxes; did you mean docker?"),
        ("use = false", 'repositories = "acme"', "'acme' is no repository: write owner/name"),
        (
            "use = false",
            'use = false\n[[permissions]]\nwho = "static"\nuse = true',
            "permissions[1]: is never reached: permissions[0] before it decides all that it is about",
        ),
    ],
)
def test_a_mistake_is_named(path: Path, old: str, new: str, words: str) -> None:
    path.write_text(RULES.replace(old, new))
    with pytest.raises(SettingsError) as caught:
        load_settings(env_file=None, given={}, toml=path)
    assert words in str(caught.value)


async def test_rules_that_decide_are_counted(path: Path, slack: Slack) -> None:
    """By what they say, so that one that has another place in the file is the same; doctor lists the others."""
    write(path, RULES + '[[permissions]]\nwho = "everyone"\nagents = "claude"\n')
    permissions, watch = watch_of(path, slack)
    assert forbidden(permissions)() == {"U01", "U07"}
    await watch.count()
    await watch.count()
    assert not permissions.why_not(Thing.AGENTS, "", user="U01", channel="C1")
    permissions.find(Right.USE, user="U01", channel="C1", counts=False)
    await watch.count()
    assert slack.decided == {'who = ["static", "oncall"], use = false': 2}


def test_the_words_of_a_rule() -> None:
    """As the file has them, so that each is told from each."""
    rule = PermissionRule(name="a", who=("U1",), things={Thing.AGENTS: ()}, budget_day=20_500_000)
    assert rule.words == 'who = ["U1"], agents = [], budget_day_usd = 20.5'
    many = [replace(rule, who=(*[f"U{n:09}" for n in range(400)], last)) for last in ("U1", "U2")]
    assert len({one.words for one in many}) == 2
    assert max(len(one.words) for one in many) < 420


def test_rules_that_say_more_are_reached(path: Path) -> None:
    """Of other people, at other places, of something else."""
    more = (
        'who = "everyone"\nuse = true',
        'who = "static"\nagents = "claude"',
        'who = "static"\nuse = true\nstop_others = false',
    )
    path.write_text(RULES + "".join(f"[[permissions]]\n{one}\n" for one in more))
    assert len(load_settings(env_file=None, given={}, toml=path).toml.permissions) == 4


def test_approvals_name_groups(path: Path) -> None:
    """A group that there is may answer; another word is told with the nearest right one."""
    rule = '\n[[approvals]]\npush = "acme/*"\ndecision = "ask"\nby = "{}"\n'
    path.write_text(RULES + rule.format("oncall"))
    assert load_settings(env_file=None, given={}, toml=path).toml.approvals
    path.write_text(RULES + rule.format("oncal"))
    with pytest.raises(SettingsError, match="did you mean oncall"):
        load_settings(env_file=None, given={}, toml=path)

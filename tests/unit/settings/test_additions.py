"""`orion.toml`: what it may say, and how it is told what is wrong."""

import os
import re
from decimal import Decimal
from pathlib import Path

import pytest

from app.compose.policy import run_policy
from app.runs.testing import AddedFile, FollowUps, RepositoryRule, RunOptions
from app.settings.group import SettingsError
from app.settings.orion_toml import MAX_FILES_BYTES, load_orion_toml
from app.settings.settings import load_settings
from tests.unit.cli.test_root import orion

_FILE = "[agents.claude.files]\n"


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    (tmp_path / "note").write_bytes(b"a note")
    tool = tmp_path / "tools" / "tool.sh"
    tool.parent.mkdir()
    tool.write_bytes(b"#!/bin/sh\n")
    tool.chmod(0o755)
    return tmp_path / "orion.toml"


def test_no_file_adds_nothing(toml: Path) -> None:
    """It need not be there."""
    assert load_orion_toml(toml).additions == {}


def test_files_and_commands_of_each_agent(toml: Path) -> None:
    """Sources are found beside the file and keep whether they can be executed; commands stay lists."""
    toml.write_text(
        _FILE + '"bin/tool" = "tools/tool.sh"\n"a note.md" = "note"\n'
        '[agents.anthropic]\ncommands = [["true"], ["sh", "-c", "x; y"]]\n'
    )
    found = load_orion_toml(toml).additions
    assert set(found) == {"claude", "anthropic"}
    assert found["claude"].files == (
        AddedFile(path="bin/tool", data=b"#!/bin/sh\n", executable=True),
        AddedFile(path="a note.md", data=b"a note", executable=False),
    )
    assert found["claude"].commands == ()
    assert found["anthropic"].commands == (("true",), ("sh", "-c", "x; y"))


def test_a_channel_has_a_sandbox_of_its_own(toml: Path) -> None:
    """By its id; beside additions."""
    toml.write_text('[channels.C0123456789]\nsandbox = "docker"\n' + _FILE + 'a = "note"\n')
    assert load_orion_toml(toml).channels == {"C0123456789": RunOptions(sandbox="docker")}
    assert set(load_orion_toml(toml).additions) == {"claude"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[channels.general]\nsandbox = "docker"',
            "channels.general: a channel is named by its id",
        ),
        ('[channels.C012345]\nsandbox = "dokcer"', "did you mean docker?"),
        (
            '[channels.C012345]\nsandbx = "docker"',
            "channels.C012345.sandbx: no such key; did you mean sandbox?",
        ),
        (
            '[channels.C012345]\nfollow_ups = "jugded"',
            "channels.C012345.follow_ups: no such rule; did you mean judged? (is 'jugded')",
        ),
        ("[channels.C012345]", "channels.C012345: says nothing; there are: sandbox, agent, model"),
        (
            f'[channels.C012345]\ninstructions = "{"x" * 1000}"',
            "channels.C012345.instructions: is 131 bytes too long for the 1,000 tokens of a channel",
        ),
        (
            '[channels.C012345]\ninstructions = " "',
            "channels.C012345.instructions: cannot be empty",
        ),
        ('[channels.C012345]\nrepo = "shop"', "channels.C012345.repo: is no repository"),
        ('[[rules]]\nwords = []\nrepo = "acme/site"', "rules[0].words: "),
        (
            '[[rules]]\nwords = ["-?-"]\nrepo = "acme/site"',
            "rules[0].words[0]: would never be found",
        ),
        ('[[rules]]\nwords = ["site"]\nrepo = "site"', "rules[0].repo: is no repository"),
        ('[[rules]]\nwords = ["site"]', "rules[0].repo: is missing"),
        (
            '[channels.C012345]\nrules = [{ word = ["site"], repo = "acme/site" }]',
            "channels.C012345.rules[0].word: no such key; did you mean words?",
        ),
    ],
)
def test_what_is_wrong_with_a_channel_is_named(toml: Path, text: str, said: str) -> None:
    """Key and value, with the nearest right one."""
    toml.write_text(text)
    with pytest.raises(SettingsError) as failure:
        load_orion_toml(toml)
    assert said in str(failure.value)


def test_a_channel_has_a_text_a_repository_and_rules(toml: Path) -> None:
    """By its id; rules of no channel are for all of them."""
    toml.write_text(
        '[channels.C012345]\ninstructions = "Answer in German."\nrepo = "acme/shop"\n'
        'rules = [{ words = ["tax  rate", "invoice"], repo = "acme/billing" }]\n'
        '[[rules]]\nwords = ["website"]\nrepo = "https://git.acme.org/site.git"\n'
    )
    found = load_orion_toml(toml)
    assert found.instructions == {"C012345": "Answer in German."}
    assert found.channels == {"C012345": RunOptions(repo="acme/shop")}
    assert found.rules == {
        "": (RepositoryRule(words=("website",), repo="https://git.acme.org/site.git"),),
        "C012345": (RepositoryRule(words=("tax rate", "invoice"), repo="acme/billing"),),
    }


def test_the_digest_changes_with_what_is_added(toml: Path) -> None:
    """Content, mode, target, command and their order count; the place and age of the file do not."""

    def digest(text: str) -> str:
        toml.write_text(text)
        return load_orion_toml(toml).additions["claude"].digest

    digests = [
        digest(_FILE + 'a = "note"'),
        digest(_FILE + 'b = "note"'),
        digest(_FILE + 'a = "note"\n[agents.claude]\ncommands = [["a"], ["b"]]'),
        digest(_FILE + 'a = "note"\n[agents.claude]\ncommands = [["b"], ["a"]]'),
        digest(_FILE + 'a = "note"\n[agents.claude]\ncommands = [["b", "a"]]'),
    ]
    (toml.parent / "note").chmod(0o700)
    digests.append(digest(_FILE + 'a = "note"'))
    (toml.parent / "note").write_bytes(b"another note")
    digests.append(digest(_FILE + 'a = "note"'))
    assert len({*digests, ""}) == len(digests) + 1
    os.utime(toml.parent / "note", (0, 0))
    assert digest(_FILE + 'a = "./note"') == digests[-1]
    assert digest("[agents.claude]") == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x =", "cannot be read: Invalid value"),
        (
            '[repositories."a/b"]\ninit = ["x", ""]',
            'repositories."a/b".init[1]: a command cannot be empty',
        ),
        ('[repositories."a/b"]\ninit = [" \\n"]', "init[0]: a command cannot be empty"),
        ("[agent.claude]", "agent: no such key; did you mean agents?"),
        ("agents = 3", "agents: must be a table (is 3)"),
        ("[agents.cluade]", "agents.cluade: no such agent; did you mean claude?"),
        ("[agents.x]", "agents.x: no such agent; known: anthropic, claude"),
        ("[agents.claude]\ncomands = []", "comands: no such key; did you mean commands?"),
        ('[agents.claude]\ncommands = ["npm i x"]', "commands[0]: a command is a list of"),
        ('[agents.claude]\ncommands = ["npm i x"]', "(is 'npm i x')"),
        ('[agents.claude]\ncommands = "x"', "commands: must be a list of commands (is 'x')"),
        ("[agents.claude]\ncommands = [[]]", "commands[0]: a command needs a program"),
        ('[agents.claude]\ncommands = [["a"], ["b", 1]]', "commands[1][1]: must be a text (is 1)"),
        ('[agents.claude]\ncommands = [["a\\u0000"]]', "an argument cannot hold a NUL"),
        (_FILE + '"/etc/x" = "note"', 'files."/etc/x": a target is a plain relative path'),
        (_FILE + '"../x" = "note"', 'files."../x": a target is a plain relative path'),
        (_FILE + '"a/../b" = "note"', 'files."a/../b": a target is a plain relative path'),
        (_FILE + '"." = "note"', 'files.".": a target is a plain relative path'),
        (_FILE + 'a = "nope"', "files.a: no such file (is 'nope')"),
        (_FILE + 'a = "tools"', "files.a: no such file (is 'tools')"),
        (_FILE + "a = 5", "files.a: must be a text (is 5)"),
        (_FILE + 'bin = "note"', "files.bin: is a directory of the environment"),
        (_FILE + 'a = "note"\n"a/b" = "note"', "files.a: is a directory of the environment"),
    ],
)
def test_what_is_wrong_is_named(toml: Path, text: str, said: str) -> None:
    """The file, the key and the value, and the right word where there is one near."""
    toml.write_text(text)
    with pytest.raises(SettingsError) as failure:
        load_orion_toml(toml)
    assert str(failure.value).startswith(str(toml))
    assert said in str(failure.value)


def test_all_that_is_wrong_is_named_together(toml: Path) -> None:
    """A line each."""
    for text in (
        _FILE + 'a = "nope"\nb = "nope"\nbin = "note"',
        _FILE + '"../a" = "note"\n[agents.cluade]\ncommands = ["true"]',
    ):
        toml.write_text(text)
        with pytest.raises(SettingsError) as failure:
            load_orion_toml(toml)
        lines = str(failure.value).splitlines()
        assert len(lines) == 3
        assert all(re.match(rf"{toml}: (line \d: )?agents\.", line) for line in lines)


def test_files_are_bounded_together(toml: Path) -> None:
    """They are held in memory: what is too much says what to do instead."""
    with (toml.parent / "large").open("wb") as file:
        file.truncate(MAX_FILES_BYTES - 1)
    toml.write_text(_FILE + 'a = "large"')
    assert len(load_orion_toml(toml).additions["claude"].files[0].data) == MAX_FILES_BYTES - 1
    toml.write_text(_FILE + 'a = "large"\nb = "note"')
    with pytest.raises(SettingsError, match=r"files\.b: more than 16 MiB in all"):
        load_orion_toml(toml)


_PRICE = '[prices."claude-*"]\ninput = 3\noutput = 15.5\ncache_read = 0.3\ncache_write = 0\n'


def test_prices_are_exact(toml: Path) -> None:
    """Three tenths are three tenths; channels have budgets beside their other wishes."""
    toml.write_text(_PRICE + "[channels.C012345]\nbudget_day_usd = 0.1\n")
    price = load_orion_toml(toml).prices["claude-*"]
    assert (price.input, price.output) == (Decimal(3), Decimal("15.5"))
    assert (price.cache_read, price.cache_write) == (Decimal("0.3"), Decimal(0))
    assert price.cache_write_1h is None
    toml.write_text(_PRICE + "cache_write_1h = 6.5\n")
    assert load_orion_toml(toml).prices["claude-*"].cache_write_1h == Decimal("6.5")
    toml.write_text(_PRICE + "[channels.C012345]\nbudget_day_usd = 0.1\n")
    assert load_orion_toml(toml).channel_budgets == {"C012345": Decimal("0.1")}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (_PRICE.replace("output = 15.5\n", ""), 'prices."claude-*".output: is missing'),
        (_PRICE.replace("15.5", "-1"), 'prices."claude-*".output: '),
        (_PRICE.replace("15.5", "nan"), 'prices."claude-*".output: '),
        (_PRICE.replace("15.5", "inf"), 'prices."claude-*".output: '),
        (_PRICE.replace("15.5", "true"), "must be a number of dollars (is true)"),
        (_PRICE.replace("15.5", '"15"'), "must be a number of dollars (is '15')"),
        (_PRICE.replace("15.5", "1e9"), 'prices."claude-*".output: '),
        (_PRICE.replace("output", "ouput"), "ouput: no such key; did you mean output?"),
        (_PRICE.replace("claude-*", "clau de"), 'prices."clau de"'),
        (_PRICE.replace("claude-*", ""), "prices.\"\": '' is no name of a model"),
        ("[channels.C012345]\nbudget_day_usd = 0", "channels.C012345.budget_day_usd: "),
    ],
)
def test_a_price_table_with_a_hole_is_named(toml: Path, text: str, said: str) -> None:
    """By its key, before anything runs."""
    toml.write_text(text)
    with pytest.raises(SettingsError) as failure:
        load_orion_toml(toml)
    assert said in str(failure.value)


def test_doctor_names_what_a_budget_would_not_see(toml: Path) -> None:
    """Models without a price, and people's own choice of them."""
    toml.write_text(_PRICE.replace("claude-*", "claude-opus-*"))
    keys = {"ANTHROPIC_API_KEY": "sk-ant-x", "ORION_SANDBOX": "local"}
    shown = orion("doctor", cwd=toml.parent, ORION_BUDGET_DAY_USD="5", **keys)
    (line,) = (line for line in shown.stdout.splitlines() if line.startswith("FAIL settings"))
    assert "people may ask anthropic for any model; name them in ORION_MODELS_ANTHROPIC" in line
    assert "has no price for claude-sonnet-5-5, which anthropic may ask" in line
    assert "has no price for claude-opus" not in line
    shown = orion("doctor", cwd=toml.parent, **keys)
    (line,) = (line for line in shown.stdout.splitlines() if line.startswith("FAIL settings"))
    assert "budget" not in line


def test_doctor_names_a_channel_whose_cloud_is_not_set_up(toml: Path) -> None:
    """Beside what else is missing; not only at the first message of that channel."""
    toml.write_text('[channels.C0123456789]\nsandbox = "vercel"\n')
    shown = orion("doctor", cwd=toml.parent, ORION_SANDBOX="local")
    (line,) = (line for line in shown.stdout.splitlines() if line.startswith("FAIL settings"))
    assert "SLACK_BOT_TOKEN" in line
    assert "channels.C0123456789: there is no sandbox 'vercel' here" in line
    keys = {"SLACK_BOT_TOKEN": "xoxb-1", "SLACK_APP_TOKEN": "xapp-1", "ANTHROPIC_API_KEY": "x"}
    shown = orion("serve", cwd=toml.parent, ORION_SANDBOX="local", **keys)
    assert shown.returncode == 1
    (line,) = shown.stderr.splitlines()
    assert line.startswith("orion cannot start: orion.toml: channels.C0123456789: there is")


@pytest.mark.long
def test_doctor_looks_at_the_clouds_of_channels(toml: Path) -> None:
    """Not at the default sandbox alone."""
    toml.write_text('[channels.C0123456789]\nsandbox = "deno"\n')
    settings = {"DENO_DEPLOY_TOKEN": "ddo_x", "ORION_DENO_API_URL": "http://127.0.0.1:1"}
    shown = orion("doctor", cwd=toml.parent, ORION_SANDBOX="local", **settings)
    (line,) = (one for one in shown.stdout.splitlines() if one.startswith("FAIL sandbox deno"))
    assert "the connection to Deno broke" in line


@pytest.mark.parametrize("command", [("serve",), ("doctor",), ("snapshots", "build")])
def test_every_command_says_it_with_the_other_bad_settings(
    command: tuple[str, ...], toml: Path
) -> None:
    """Exit code 2, both named, no traceback."""
    toml.write_text('[agents.claude]\ncommands = ["true"]')
    shown = orion(*command, cwd=toml.parent, ORION_PORT="x")
    assert shown.returncode == 2
    assert "ORION_PORT" in shown.stderr
    assert "orion.toml: line 2: agents.claude.commands[0]: a command is a list of" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_doctor_says_what_is_added(toml: Path) -> None:
    """One line, beside the settings."""
    toml.write_text(_FILE + 'a = "note"\n')
    shown = orion(
        *("doctor", "--json"),
        cwd=toml.parent,
        ORION_STATE_DIR=str(toml.parent / "state"),
        ORION_SANDBOX="local",
        ORION_LOCAL_ISOLATION="none",
        SLACK_BOT_TOKEN="xoxb-1",
        SLACK_SIGNING_SECRET="s",
        ANTHROPIC_API_KEY="k",
        SLACK_API_URL="http://127.0.0.1:9/",
    )
    assert "complete; orion.toml adds to claude (files: 1, commands: 0)" in shown.stdout


def test_a_channel_has_a_rule_for_replies_of_its_own(tmp_path: Path) -> None:
    """The others keep the one of the settings."""
    toml = tmp_path / "orion.toml"
    toml.write_text('[channels.C0123456789]\nfollow_ups = "judged"\n')
    settings = load_settings(env_file=None, given={"orion_follow_ups": "never"}, toml=toml)
    policy = run_policy(settings)
    assert policy.follow_ups_in("C0123456789") is FollowUps.JUDGED
    assert policy.follow_ups_in("C1") is FollowUps.NEVER


def test_whether_agents_ask_people(toml: Path) -> None:
    """Nowhere without a word; a channel's own comes first."""
    assert not run_policy(load_settings(env_file=None, given={}, toml=toml)).asks_people_in("C1")
    toml.write_text("questions = true\n[channels.C0123456789]\nquestions = false\n")
    policy = run_policy(load_settings(env_file=None, given={}, toml=toml))
    assert policy.asks_people_in("C1")
    assert not policy.asks_people_in("C0123456789")
    assert policy.max_still_s == policy.approval_timeout_s
    toml.write_text('questions = "sometimes"\n')
    with pytest.raises(SettingsError, match=r"questions: .*sometimes"):
        load_orion_toml(toml)


RULES = """
[[approvals]]
tool = "notes.*"
arguments = { team = "ops-*" }
decision = "ask"
by = ["operators", "U0123456789"]
people = 2

[[approvals]]
push = "acme/*"
decision = "deny"

[[channels.C0123456789.approvals]]
host = "*.Example.com"
decision = "ask"
"""


def test_rules_of_approvals(toml: Path) -> None:
    """Of all places and of channels; a repository may be on any host, a host has a port."""
    toml.write_text(RULES)
    rules = load_orion_toml(toml).approvals
    tool, push, host = rules
    assert (tool.pattern, tool.by, tool.people) == ("notes.*", ("operators", "U0123456789"), 2)
    assert (push.pattern, push.decision, push.by) == ("*/acme/*", "deny", ("asker",))
    assert (host.pattern, host.channel) == ("*.example.com:443", "C0123456789")
    assert rules.of_channels["C0123456789"] == (host,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('tool = "a.b"', "line 4: approvals[1].decision: is missing"),
        ('tool = "a.b"\ndecision = "aks"', "no such decision; did you mean ask? (is 'aks')"),
        ('decision = "ask"', "must be about one of tool, push,"),
        ('tool = "a.b"\npush = "x/y"\ndecision = "ask"', "it is about tool and push"),
        ('tol = "a.b"\ndecision = "ask"', "approvals[1].tol: no such key; did you mean tool?"),
        ('tool = "ab"\ndecision = "ask"', "names a server and a tool of it"),
        ('push = "x/y"\narguments = {a = "b"}\ndecision = "ask"', "arguments are a tool's"),
        ('push = "x/y"\nby = "asker"\ndecision = "deny"', "nobody is asked with decision = 'deny'"),
        ('push = "x/y"\nby = "operator"\ndecision = "ask"', "did you mean operators?"),
        ('push = "x/y"\nby = []\ndecision = "ask"', "names nobody"),
        ('push = "x/y"\npeople = 2\ndecision = "ask"', "people = 2, but `by` names fewer"),
        ('push = "x/y"\npeople = 0\ndecision = "ask"', "approvals[1].people:"),
        ('host = "10.0.0.1"\ndecision = "ask"', "is an address; only names are allowed"),
        ('own_key = "antropic"\ndecision = "ask"', "did you mean anthropic?"),
        ('push = ""\ndecision = "ask"', "approvals[1].push:"),
    ],
)
def test_a_rule_with_a_mistake_is_named_by_its_line(toml: Path, text: str, said: str) -> None:
    """And says what may be meant."""
    toml.write_text(f'[[approvals]]\npush = "y"\ndecision="ask"\n[[approvals]]\n{text}\n')
    with pytest.raises(SettingsError) as raised:
        load_orion_toml(toml)
    assert said in str(raised.value)
    assert re.search(r": line [4-7]: approvals\[1\]", str(raised.value))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[[approvals]]\ntool = "nots.*"\ndecision = "ask"',
            'approvals: tool = "nots.*": there is no MCP server nots outside sandboxes; did you mean notes?',
        ),
        (
            '[[approvals]]\npush = "*"\ndecision = "ask"\nby = "operators"',
            "only operators may answer, and ORION_OPERATORS names 0",
        ),
        (
            '[[approvals]]\npush = "*"\ndecision = "ask"\n[[approvals]]\npush = "acme/*"\ndecision = "deny"',
            'push = "acme/*": is never reached, as push = "*" stands before it',
        ),
        (
            '[[approvals]]\ntool = "notes.*"\ndecision = "ask"\n[[approvals]]\ntool = "notes.note"\narguments = {a = "b"}\ndecision = "deny"',
            'tool = "notes.note" with a = "b": is never reached, as tool = "notes.*" stands before it',
        ),
        (
            '[[approvals]]\npush = "acme/*"\ndecision = "ask"\n[[approvals]]\npush = "Acme/secret"\ndecision = "deny"',
            'push = "Acme/secret": is never reached, as push = "acme/*" stands before it',
        ),
    ],
)
def test_a_rule_that_could_do_nothing_does_not_start(
    toml: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    """Never one that silently does nothing."""
    servers = toml.with_name("mcp.json")
    servers.write_text('{"mcpServers": {"notes": {"url": "https://notes.example/mcp"}}}')
    monkeypatch.setenv("ORION_MCP_CONFIG_FILE", str(servers))
    toml.write_text(text)
    with pytest.raises(SettingsError) as raised:
        load_settings(env_file=None, toml=toml)
    assert said in str(raised.value)

"""Where in `orion.toml` a mistake stands: the line of its key, else of what is around it."""

import time
from pathlib import Path

import pytest

from app.settings.group import SettingsError
from app.settings.settings import load_settings
from app.settings.toml_lines import Location, find_line, place_of

FILE = """\
# A comment, and [no.head]
questions = true

[groups]
'on-call' = ["U1",
  "U2", # "]"
]
text.of.keys = 1

[[approvals]]
tool = \"\"\"
[[approvals]]
decision = "no key"
\"\"\"
decision = "ask"

[[approvals]]   # another
decision="deny"
[approvals.arguments]
team = "ops"
[[ channels . "C 1" . approvals ]]
push = "x"
[channels."C 1"]
rules = [
  { words = ["a"], repo = "x/y" },
]
[[approvals]]
"""


@pytest.mark.parametrize(
    ("location", "line"),
    [
        (("questions",), 2),
        (("groups",), 4),
        (("groups", "on-call"), 5),
        (("groups", "on-call", 1), 5),
        (("groups", "text", "of"), 8),
        (("groups", "gone"), 4),
        (("approvals",), 10),
        (("approvals", 0, "tool"), 11),
        (("approvals", 0, "decision"), 15),
        (("approvals", 0, "by"), 10),
        (("approvals", 1), 17),
        (("approvals", 1, "decision"), 18),
        (("approvals", 1, "arguments", "team"), 20),
        (("approvals", 2, "tool"), 27),
        (("channels", "C 1", "approvals", 0, "push"), 22),
        (("channels", "C 1", "rules", 0, "repo"), 24),
        (("channels", "C 1", "repo"), 21),
        (("nothing",), 0),
        ((), 0),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_line_of_a_key_or_of_what_is_around_it(location: Location, line: int, end: str) -> None:
    """Heads, quoted and dotted keys, values of several lines; what only looks like a head is none."""
    assert find_line(FILE.replace("\n", end), location) == line


def test_a_long_list_is_read_at_once() -> None:
    """It is looked at where the file is read, and that is while Orion runs."""
    people = "".join(f'  "U{number:09}",\n' for number in range(5000))
    began = time.perf_counter()
    assert find_line(f"[groups]\nall = [\n{people}]\nlate = 1\n", ("groups", "late")) == 5004
    assert time.perf_counter() - began < 2


def test_a_file_that_is_gone_has_no_lines(tmp_path: Path) -> None:
    path = tmp_path / "orion.toml"
    assert place_of(path, ("groups",)) == f"{path}:"


RULE = '[[approvals]]\npush = "acme/*"\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[[approvals]]\ntool = "a.b"\ndecision = "aks"', "line 3: approvals[0].decision: no such"),
        ("\n[[aprovals]]\n", "line 2: aprovals: no such key; did you mean approvals?"),
        ("\nqestions = false", "line 2: qestions: no such key; did you mean questions?"),
        ('[groups]\nA = "U123"', "line 2: groups.A: a group has a name"),
        ('[groups]\na = "b"', "line 2: groups.a: 'b' is neither a person"),
        ("[channels]\n[channels.general]\nquestions = true", "line 2: channels.general: a channel"),
        (
            f'{RULE}decision = "ask"\n{RULE}decision = "deny"',
            'line 4: approvals: push = "acme/*": is never reached',
        ),
        (
            '[[approvals]]\ntool = "nots.create"\ndecision = "ask"',
            'line 1: approvals: tool = "nots.create": there is no MCP server nots',
        ),
        (
            '[channels.C0123456789]\n[[channels.C0123456789.approvals]]\ntool = "a.b"\ndecision = "ask"',
            'line 2: approvals: tool = "a.b" in C0123456789: there is no MCP server a',
        ),
        (
            '[[permissions]]\nwho = "everyone"\nuse = true\n[[permissions]]\nwho = "U123"\nuse = false',
            "line 4: permissions[1]: is never reached",
        ),
        (
            '[[permissions]]\nwho = "everyone"\nuse = "yes"',
            "line 3: permissions[0].use: must be true or false (is 'yes')",
        ),
        (
            '[[permissions]]\nwho = "everyone"\nbudget_day_usd = "3"',
            "line 3: permissions[0].budget_day_usd: must be a number of dollars (is '3')",
        ),
        ('questions = "no"', "line 1: questions: must be true or false (is 'no')"),
        ("questions = 1979-05-27", "line 1: questions: must be true or false (is 1979-05-27)"),
        (f"{RULE}decision = true", "line 3: approvals[0].decision: must be a text (is true)"),
        (
            f'{RULE}decision = "ask"\npeople = "2"',
            "line 4: approvals[0].people: must be a whole number (is '2')",
        ),
    ],
)
def test_every_mistake_has_its_line(tmp_path: Path, text: str, told: str) -> None:
    """Found while the file is read, or afterwards with the settings."""
    path = tmp_path / "orion.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as refused:
        load_settings(env_file=None, given={}, toml=path)
    assert f"{path}: {told}" in str(refused.value)


def test_a_table_is_not_shown_as_python_has_it(tmp_path: Path) -> None:
    """Where all of it is the mistake: its line is told."""
    path = tmp_path / "orion.toml"
    path.write_text('\n[[approvals]]\ndecision = "ask"\n')
    with pytest.raises(SettingsError) as refused:
        load_settings(env_file=None, given={}, toml=path)
    line = f"{path}: line 2: approvals[0]: must be about one of"
    assert str(refused.value).startswith(line)
    assert "(is" not in str(refused.value)

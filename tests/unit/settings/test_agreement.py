"""Which settings of two processes differ."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from app.settings.agreement import HASH_CHARS, OF_HEARING, OWN, find_differences, fingerprints
from app.settings.settings import all_fields, load_settings

KEY = b"of the deployment"
NOTHING: Mapping[str, str] = {}
TOML = """
[channels.C0123456789]
agent = "claude"

[[approvals]]
push = "acme/*"
decision = "ask"

[agents.claude]
files = { "notes.txt" = "notes.txt" }
"""


def _told(
    given: Mapping[str, str] = NOTHING,
    *,
    hears: bool = True,
    toml: Path | None = None,
    key: bytes = KEY,
) -> Mapping[str, str]:
    settings = load_settings(env_file=None, given=given, toml=toml)
    return fingerprints(settings, key=key, hears=hears)


def test_what_is_left_out_are_settings() -> None:
    """A misspelt one would be compared. What an operator sets of them stands in the docs."""
    names = {name for _, _, names in all_fields() for name in names}
    assert names >= OWN | OF_HEARING
    told = Path("docs/operate.md").read_text()
    assert [name for name in OWN | OF_HEARING if f"`{name}`" not in told] == []
    assert set(_told()) == (names - OWN) | {"orion.toml"}
    assert set(_told(hears=False)) == (names - OWN - OF_HEARING) | {"orion.toml"}


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("orion_public_url", "", "https://orion.example.com"),
        ("anthropic_api_key", "sk-ant-one", "sk-ant-other"),
        ("orion_model_claude", "opus", "sonnet"),
        ("orion_allowed_users", "U1", "U1 U2"),
        ("orion_max_concurrent_runs", "3", "4"),
        ("orion_egress_hosts", "a.example.com", "a.example.com:8443"),
    ],
)
def test_one_that_differs_is_named(name: str, one: str, other: str) -> None:
    """Also one that only one process has; nothing of a value is told."""
    own, theirs = _told({name: one} if one else {}), _told({name: other})
    assert find_differences(own, {"there:7": theirs}) == f"{name.upper()} is not as in there:7"
    assert {len(value) for value in own.values()} == {HASH_CHARS}
    assert theirs != _told({name: other}, key=b"of another one")


def test_what_means_the_same_is_the_same() -> None:
    """In whatever order it is said."""
    one = _told({"orion_allowed_users": "U1 U2 U3 U4 U5", "orion_port": "1"})
    other = _told({"orion_allowed_users": "U5,U3,U4,U1,U2", "orion_port": "2"})
    assert find_differences(one, {"there:7": other}) == ""


def test_processes_that_differ_alike_are_told_together() -> None:
    """What one of two does not know is not compared."""
    own = {"A": "1", "B": "1", "C": "1"}
    others = {
        "x:2": {"A": "2", "B": "2"},
        "x:1": {"A": "2", "B": "3", "D": "1"},
        "x:3": {"A": "1", "C": "2"},
    }
    assert find_differences(own, others) == "A, B are not as in x:1, x:2; C is not as in x:3"


def test_of_files_what_they_hold_is_compared(tmp_path: Path) -> None:
    """Wherever they are; of `orion.toml` what stays as it is while a process runs."""
    told = []
    for name in ("one", "other"):
        home = tmp_path / name
        home.mkdir()
        (home / "prompt").write_text("Be brief.")
        (home / "mcp.json").write_text('{"mcpServers": {"a": {"command": "a"}}}')
        (home / "orion.toml").write_text(TOML)
        (home / "notes.txt").write_text("notes")
        told.append(_of_files(home))
    one, other = told
    assert find_differences(one, {"there:7": other}) == ""
    changes = {
        "prompt": ("Be long.", "ORION_SYSTEM_PROMPT_FILE"),
        "mcp.json": ('{"mcpServers": {}}', "ORION_MCP_CONFIG_FILE"),
        "notes.txt": ("other notes", "orion.toml"),
        "orion.toml": (TOML.replace('"ask"', '"deny"'), "orion.toml"),
    }
    for file, (text, name) in changes.items():
        path = tmp_path / "other" / file
        before = path.read_text()
        path.write_text(text)
        other = _of_files(tmp_path / "other")
        assert find_differences(one, {"there:7": other}) == f"{name} is not as in there:7"
        path.write_text(before)
    (tmp_path / "other" / "orion.toml").write_text(f'{TOML}\n[groups]\nbackend = ["U0123456789"]\n')
    assert find_differences(one, {"there:7": _of_files(tmp_path / "other")}) == ""


def _of_files(home: Path) -> Mapping[str, str]:
    return _told(
        {
            "orion_system_prompt_file": str(home / "prompt"),
            "orion_mcp_config_file": str(home / "mcp.json"),
        },
        toml=home / "orion.toml",
    )

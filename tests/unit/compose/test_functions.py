"""What Orion must have, and cannot have, as functions of Vercel's."""

import json
from pathlib import Path

import pytest

from app.compose.models import missing_for_serving
from app.settings.settings import load_settings

RIGHT = {
    "VERCEL": "1",
    "SLACK_BOT_TOKEN": "xoxb-1",
    "SLACK_SIGNING_SECRET": "secret",
    "ANTHROPIC_API_KEY": "sk-ant-1",
    "ORION_DATABASE_URL": "postgresql://orion@127.0.0.1/orion",
    "ORION_SANDBOX": "vercel",
    "VERCEL_OIDC_TOKEN": "token",
}


def _missing(**said: str | None) -> str:
    given = {name: value for name, value in (RIGHT | said).items() if value is not None}
    return "\n".join(missing_for_serving(load_settings(env_file=None, given=given, toml=None)))


def test_nothing_is_missing() -> None:
    """And files are written where a function may."""
    assert _missing() == ""
    settings = load_settings(env_file=None, given=RIGHT, toml=None)
    assert settings.service.state_dir == Path("/tmp/orion")  # noqa: S108 - a function's own


@pytest.mark.parametrize("kind", ["push", "pull_request", "own_key"])
def test_what_functions_cannot_wait_for(kind: str, tmp_path: Path) -> None:
    """A tool's call is asked for again by its agent; for these Orion itself would have to stay."""
    pattern = "anthropic" if kind == "own_key" else "acme/*"
    (tmp_path / "orion.toml").write_text(
        f'[[approvals]]\ntool = "notes.*"\ndecision = "ask"\n[[approvals]]\n{kind} = "{pattern}"\ndecision = "ask"\n'
    )
    given = RIGHT | {"ORION_MCP_CONFIG_FILE": str(tmp_path / "mcp.json")}
    server = {"type": "http", "url": "https://notes.example.com"}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"notes": server}}))
    settings = load_settings(env_file=None, given=given, toml=tmp_path / "orion.toml")
    (line,) = missing_for_serving(settings)
    assert line.startswith(f"orion.toml, [[approvals]]: {kind} = ")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("ORION_DATABASE_URL", None, "ORION_DATABASE_URL: missing"),
        ("SLACK_APP_TOKEN", "xapp-1", "SLACK_APP_TOKEN: functions keep no socket"),
        (
            "ORION_SANDBOX",
            "local",
            "ORION_SANDBOX: functions need a cloud's sandboxes (is 'local')",
        ),
        ("ORION_SLICE_S", "200", "ORION_SLICE_S: functions work 100 s at a time at most (is 200)"),
    ],
)
def test_what_functions_cannot_do(name: str, value: str | None, reason: str) -> None:
    """It is said with the setting and its value."""
    assert reason in _missing(**{name: value})

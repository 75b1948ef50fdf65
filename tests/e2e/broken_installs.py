"""Installs that are broken in one way each, for `orion doctor`; `python -m tests.e2e.broken_installs` prints what it says of all of them."""

import asyncio
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.playground.slack.types import FakeSlackConfig
from tests.e2e.harness import Stage, open_orion, open_world
from tests.e2e.orion_process import new_state_dir
from tests.e2e.prepared import prepared_state_dir

NOWHERE: Final = "http://127.0.0.1:9"
"""Source: RFC 863, discard; nobody listens there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenInstall:
    name: str
    part: str
    """Of doctor's lines, the one that fails."""
    changes: Mapping[str, str]
    """Of the settings of an install that works."""
    says: str
    fix: str
    """Beginning of what is said to be done; empty = it says nothing of the kind."""


BROKEN: Final = (
    BrokenInstall(
        name="a wrong bot token",
        part="slack",
        changes={"SLACK_BOT_TOKEN": "xoxb-wrong"},
        says="auth.test: invalid_auth",
        fix="check the token",
    ),
    BrokenInstall(
        name="a wrong app-level token",
        part="events",
        changes={"SLACK_APP_TOKEN": "xapp-wrong"},
        says="apps.connections.open: invalid_auth",
        fix="make an app-level token with connections:write",
    ),
    BrokenInstall(
        name="a public address that nobody serves",
        part="events",
        changes={"ORION_PUBLIC_URL": NOWHERE},
        says=f"{NOWHERE}/slack/events: ConnectError",
        fix="let the proxy lead /slack/events",
    ),
    BrokenInstall(
        name="a socket, and a public address that nobody serves",
        part="address",
        changes={"SLACK_APP_TOKEN": FakeSlackConfig().app_token, "ORION_PUBLIC_URL": NOWHERE},
        says=f"{NOWHERE}/healthz: ConnectError",
        fix="let the proxy lead all of ORION_PUBLIC_URL here",
    ),
    BrokenInstall(
        name="no Docker engine",
        part="sandbox",
        changes={"ORION_SANDBOX": "docker", "DOCKER_HOST": "unix:///nowhere.sock"},
        says="nowhere.sock",
        fix="start the engine, or set ORION_SANDBOX=local",
    ),
    BrokenInstall(
        name="no database",
        part="database",
        changes={"ORION_DATABASE_URL": "postgresql://orion:hunter2@127.0.0.1:9/orion"},
        says="127.0.0.1:9",
        fix="",
    ),
    BrokenInstall(
        name="a model that is not there",
        part="model",
        changes={"ANTHROPIC_BASE_URL": NOWHERE},
        says="/v1/models: ConnectError",
        fix="check the key",
    ),
    BrokenInstall(
        name="a model that its vendor has not",
        part="model",
        changes={"ORION_MODEL_CODEX": "nosuch-9"},
        says="takes the key, and has no model 'nosuch-9'",
        fix="check the key and the address of each, and what ORION_MODEL",
    ),
    BrokenInstall(
        name="a wrong configuration token",
        part="manifest",
        changes={"SLACK_CONFIG_TOKEN": "xoxe-wrong", "ORION_PUBLIC_URL": NOWHERE},
        says="apps.manifest.export: invalid_auth",
        fix="make a new SLACK_CONFIG_TOKEN",
    ),
    BrokenInstall(
        name="a manifest that is not Orion's",
        part="manifest",
        changes={"SLACK_CONFIG_TOKEN": FakeSlackConfig().config_token, "ORION_PUBLIC_URL": NOWHERE},
        says="it differs: features is missing; oauth_config is missing; settings is missing",
        fix="paste `orion manifest`",
    ),
    BrokenInstall(
        name="a wrong key of Langfuse",
        part="langfuse",
        changes={"LANGFUSE_SECRET_KEY": "sk-wrong"},
        says="HTTP 401",
        fix="check LANGFUSE_BASE_URL",
    ),
    BrokenInstall(
        name="a Langfuse that is not there",
        part="langfuse",
        changes={"LANGFUSE_BASE_URL": NOWHERE},
        says="ConnectError",
        fix="check LANGFUSE_BASE_URL",
    ),
)
_HEAD = """\
# What doctor says

Printed by `make doctor`: `orion doctor` of an install that works, and of ones that are broken in one way each, with Orion's stand-ins for Slack, model and Langfuse. Ports,
ids and directories stand as `…`; of the broken ones only the lines that are not `ok`.

"""


async def _told(stage: Stage, name: str, changes: Mapping[str, str]) -> str:
    code, said = await stage.cli("doctor", **changes)
    directory = str(stage.orion.state_dir.parent)
    said = re.sub(
        r"\bstate-\w+|(?<=pid )\d+|(?<=127\.0\.0\.1:)\d+", "…", said.replace(f"{directory}/", "")
    )
    lines = [line for line in said.splitlines() if code == 0 or not line.startswith("ok ")]
    shown = "".join(f"    {line}\n" for line in lines)
    changed = ", ".join(f"`{one}={value or '(empty)'}`" for one, value in changes.items())
    return f"## {name}\n\n{changed}{': ' if changed else ''}exit code {code}\n\n{shown}\n"


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="o-") as directory:
        async with (
            open_world() as world,
            open_orion(world, new_state_dir(Path(directory)), prepared_state_dir()) as stage,
        ):
            well = {"ORION_PUBLIC_URL": stage.orion.url}
            sys.stdout.write(_HEAD + await _told(stage, "an install that works", well))
            for broken in BROKEN:
                sys.stdout.write(await _told(stage, broken.name, broken.changes))


if __name__ == "__main__":
    asyncio.run(main())

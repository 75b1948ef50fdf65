"""`orion setup` against emulated clouds: what is asked, what is told, what is kept."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import stat
import sys
import termios
from typing import TYPE_CHECKING

import pytest

from app.cli.commands.setup import QUESTIONS, Question, set_up
from app.settings.settings import load_settings
from tests.e2e.clouds import CLOUDS
from tests.e2e.orion_process import run_cli, scrubbed_environment
from tests.emulators.vercel.world import OIDC_TOKEN
from tests.long import one_of_each

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.bubblewrap,
    pytest.mark.machines,
    pytest.mark.timeout(240),
]

TOKEN_FIELDS = {"vercel": "vercel_token", "deno": "deno_deploy_token"}
REGIONS = {"vercel": "fra1", "deno": "ams"}
"""Not those that are proposed at first."""
WRONG = "wrong-token-of-a-person"


@pytest.mark.long
@pytest.mark.parametrize("name", one_of_each(CLOUDS, lambda _name: None))
async def test_a_cloud_is_set_up(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong token is told and asked for again; then all is kept, for its owner alone, and the environment is built."""
    env_file = tmp_path / "work" / ".env"
    env_file.parent.mkdir()
    env_file.write_text("# mine\nORION_SANDBOX=auto\n")
    monkeypatch.setenv("ORION_STATE_DIR", str(tmp_path / "state"))
    lines: list[str] = []
    asked: list[str] = []
    with CLOUDS[name](()) as cloud:
        for setting, value in cloud.settings.items():
            if setting.endswith("_API_URL"):
                monkeypatch.setenv(setting, value)

        async def ask(question: Question) -> str:
            asked.append(question.field)
            if question.field == TOKEN_FIELDS[name] and WRONG not in "".join(map(str, asked)):
                asked.append(WRONG)
                return WRONG
            if question.field == "orion_sandbox_region" and asked.count(question.field) == 1:
                return REGIONS[name]
            return cloud.settings.get(question.field.upper(), question.default)

        assert await set_up(name, ask=ask, say=lines.append, env_file=env_file)
        assert cloud.running() == 0
        environment = (
            scrubbed_environment()
            | dict(cloud.settings)
            | {"ORION_STATE_DIR": str(tmp_path / "state"), "ORION_SANDBOX_REGION": ""}
        )
        listing = ("sandboxes", "list", "--json")
        code, said = await run_cli(*listing, environment=environment, directory=tmp_path)
        assert (code, said) == (0, "[]\n")
        code, said = await run_cli("setup", name, environment=environment, directory=tmp_path)
        assert code == 1
        assert said.splitlines()[-1] == "need: ORION_SANDBOX_REGION"
    first, *states = [line.partition(":")[0] for line in lines]
    assert first == "checking"
    fields = len(QUESTIONS[name])
    one_round = ["need"] * fields + ["validating"]
    assert states[: 2 * fields + 3] == [*one_round, "invalid", *one_round]
    assert set(states[2 * fields + 3 : -1]) == {"building"}
    assert states[-1] == "ready"
    assert WRONG not in "".join(lines)
    text = env_file.read_text()
    assert text.startswith("# mine\n")
    for question in QUESTIONS[name]:
        kept = (dict(cloud.settings) | {"ORION_SANDBOX_REGION": REGIONS[name]})[
            question.field.upper()
        ]
        assert f"{question.field.upper()}={kept}" in text.replace("'", "")
    assert stat.S_IMODE(env_file.stat().st_mode) == 0o600


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    one_of_each(
        [
            ("vercel", {"VERCEL_PROJECT_ID": "prj_of_others"}, "VERCEL_PROJECT_ID"),
            ("vercel", {"ORION_SANDBOX_REGION": "ams"}, "need: ORION_SANDBOX_REGION"),
            ("deno", {"ORION_SANDBOX_REGION": "iad1"}, "need: ORION_SANDBOX_REGION"),
            ("deno", {"ORION_SANDBOX_REGION": "ord,mars"}, "no region 'mars' (vercel: arn1, bom1"),
            ("vercel", {"VERCEL_TOKEN": "tökén"}, "VERCEL_TOKEN: has white space, or a character"),
            ("deno", {"DENO_DEPLOY_TOKEN": "a\nb"}, "DENO_DEPLOY_TOKEN: has white space, or a"),
            ("vercel", {"ORION_SANDBOX_VCPUS": "64"}, "ORION_SANDBOX_VCPUS"),
            ("deno", {"ORION_RUN_TIMEOUT_S": "7200"}, "ORION_RUN_TIMEOUT_S"),
        ],
        lambda _row: None,
    ),
)
async def test_what_is_wrong_is_found_before_anything_is_built(
    name: str, wrong: Mapping[str, str], said: str, tmp_path: Path
) -> None:
    """Though all that is asked for is set; nothing is built, and no file is made."""
    with CLOUDS[name](()) as cloud:
        region = {"ORION_SANDBOX_REGION": {"vercel": "iad1", "deno": "ord"}[name]}
        given = dict(cloud.settings) | region | dict(wrong) | {"ORION_SANDBOX": "auto"}
        environment = scrubbed_environment() | given | {"ORION_STATE_DIR": str(tmp_path / "state")}
        env_file = tmp_path / ".env"
        code, told = await run_cli("setup", name, environment=environment, directory=tmp_path)
        assert code != 0
        assert said in told
        assert "building" not in told
        assert not any(wrong.get(field.upper(), "\0") in told for field in TOKEN_FIELDS.values())
        assert b"v2/volumes" not in cloud.sent()
        assert not os.path.exists(env_file)  # noqa: ASYNC240, PTH110 - a look takes no time


@pytest.mark.long
@pytest.mark.parametrize("name", one_of_each(CLOUDS, lambda _name: None))
async def test_doctor_names_the_setup_for_a_wrong_token(name: str, tmp_path: Path) -> None:
    """Not what would help on another provider."""
    with CLOUDS[name](()) as cloud:
        wrong = {TOKEN_FIELDS[name].upper(): WRONG}
        environment = scrubbed_environment() | dict(cloud.settings) | wrong
        state = {"ORION_STATE_DIR": str(tmp_path / "state")}
        _, told = await run_cli("doctor", environment=environment | state, directory=tmp_path)
        (line,) = (line for line in told.splitlines() if line.startswith("FAIL sandbox"))
        assert f"`orion setup {name}`" in line
        assert "bubblewrap" not in line


@pytest.mark.long
@pytest.mark.parametrize("name", one_of_each(CLOUDS, lambda _name: None))
async def test_verify_without_a_key_says_what_a_cloud_needs(name: str, tmp_path: Path) -> None:
    """Before anything is made there: the offline model is on this machine."""
    with CLOUDS[name](()) as cloud:
        environment = scrubbed_environment() | dict(cloud.settings)
        state = {"ORION_STATE_DIR": str(tmp_path / "state")}
        code, told = await run_cli("verify", environment=environment | state, directory=tmp_path)
        assert code == 1
        assert told.splitlines()[-1].startswith(
            "FAIL MODEL_AUTH_FAILED: a sandbox in a cloud cannot reach the offline model"
        )
        assert b"v2/volumes" not in cloud.sent()


@pytest.mark.long
async def test_a_wrong_token_that_is_set_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once; what is no secret is proposed as it is set, but for a region of another cloud. The environment would still win."""
    monkeypatch.setenv("ORION_STATE_DIR", str(tmp_path / "state"))
    lines: list[str] = []
    asked: list[Question] = []
    with CLOUDS["deno"](()) as cloud:
        for setting, value in cloud.settings.items():
            monkeypatch.setenv(setting, value)
        monkeypatch.setenv("ORION_SANDBOX", "auto")
        monkeypatch.setenv("ORION_SANDBOX_REGION", "iad1")
        monkeypatch.setenv("DENO_DEPLOY_TOKEN", WRONG)

        async def ask(question: Question) -> str:
            asked.append(question)
            return cloud.settings["DENO_DEPLOY_TOKEN"] if question.is_secret else question.default

        env_file = tmp_path / ".env"
        assert not await set_up("deno", ask=ask, say=lines.append, env_file=env_file)
        assert lines[-1].startswith("error: ORION_SANDBOX_REGION, DENO_DEPLOY_TOKEN: kept, but")
        assert b"v2/volumes" not in cloud.sent()
        monkeypatch.delenv("DENO_DEPLOY_TOKEN")
        monkeypatch.delenv("ORION_SANDBOX_REGION")
        assert await set_up("deno", ask=None, say=lines.append, env_file=env_file)
    assert [(each.field, each.default) for each in asked] == [
        ("orion_sandbox_region", "ord"),
        ("deno_deploy_token", ""),
        ("orion_sandbox_region", "ord"),
    ]
    assert [line for line in lines if line.startswith("invalid")][1:] == []


@pytest.mark.long
async def test_each_cloud_keeps_its_region(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sets up a second one is asked for its region alone; a token with a slip of the pen is told without it, and asked for again."""
    monkeypatch.setenv("ORION_STATE_DIR", str(tmp_path / "state"))
    env_file = tmp_path / ".env"
    lines: list[str] = []
    asked: list[str] = []
    with CLOUDS["deno"](()) as cloud:
        env_file.write_text("ORION_SANDBOX_REGION=fra1\n")
        monkeypatch.setenv("ORION_DENO_API_URL", cloud.settings["ORION_DENO_API_URL"])

        async def ask(question: Question) -> str:
            asked.append(question.field)
            if question.field == "orion_sandbox_region":
                return "ams"
            return "curly“token”" if len(asked) == 1 else cloud.settings["DENO_DEPLOY_TOKEN"]

        assert await set_up("deno", ask=ask, say=lines.append, env_file=env_file)
    assert asked == ["deno_deploy_token", "orion_sandbox_region"] * 2
    (invalid,) = (line for line in lines if line.startswith("invalid"))
    assert invalid.startswith("invalid: DENO_DEPLOY_TOKEN: has white space, or a character")
    assert "curly" not in "".join(lines)
    assert "ORION_SANDBOX_REGION='ams,fra1'" in env_file.read_text()
    settings = load_settings(env_file=env_file)
    assert (settings.sandbox.region_of("deno"), settings.sandbox.region_of("vercel")) == (
        "ams",
        "fra1",
    )


@pytest.mark.long
async def test_a_token_that_nobody_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With Vercel's OIDC token the region alone is asked for, again when it is none; then runs find all that they need."""
    monkeypatch.setenv("ORION_STATE_DIR", str(tmp_path / "state"))
    lines: list[str] = []
    asked: list[str] = []
    with CLOUDS["vercel"](()) as cloud:
        monkeypatch.setenv("ORION_VERCEL_API_URL", cloud.settings["ORION_VERCEL_API_URL"])
        monkeypatch.setenv("VERCEL_OIDC_TOKEN", OIDC_TOKEN)

        async def ask(question: Question) -> str:
            asked.append(question.field)
            return "zzz9" if len(asked) == 1 else question.default

        assert await set_up("vercel", ask=ask, say=lines.append, env_file=tmp_path / ".env")
        assert cloud.running() == 0
    assert asked == ["orion_sandbox_region"] * 2
    assert [line.partition(":")[0] for line in lines][:7] == [
        *("checking", "need", "validating", "invalid"),
        *("need", "validating", "building"),
    ]
    assert "no region 'zzz9' (vercel: arn1, bom1" in lines[3]
    assert OIDC_TOKEN not in "".join(lines)
    assert (tmp_path / ".env").read_text().strip() == "ORION_SANDBOX_REGION=iad1"


async def test_ctrl_c_at_a_question_ends_it(tmp_path: Path) -> None:
    """At once, with nothing kept."""
    environment = scrubbed_environment() | {"ORION_STATE_DIR": str(tmp_path / "state")}
    primary, secondary = pty.openpty()
    argv = (sys.executable, "-m", "app.cli", "setup", "deno")
    process = await asyncio.create_subprocess_exec(
        *argv,
        env=environment,
        cwd=tmp_path,
        stdin=secondary,
        stdout=secondary,
        stderr=secondary,
        preexec_fn=_own_terminal,
    )
    os.close(secondary)
    try:
        said = b""
        async with asyncio.timeout(30):
            while b"Access token" not in said:
                said += await asyncio.to_thread(os.read, primary, 4096)
            os.write(primary, b"\x03")
            assert await process.wait() == 1
    finally:
        os.close(primary)
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert list(tmp_path.iterdir()) in ([], [tmp_path / "state"])  # noqa: ASYNC240 - same


def _own_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


async def test_nobody_is_there_to_answer(tmp_path: Path) -> None:
    """Without a terminal it names what is missing; an unknown cloud is a usage error."""
    environment = scrubbed_environment() | {"ORION_STATE_DIR": str(tmp_path / "state")}
    code, said = await run_cli("setup", "deno", environment=environment, directory=tmp_path)
    assert (code, said.splitlines()) == (
        1,
        ["checking: what is set for deno", "need: DENO_DEPLOY_TOKEN, ORION_SANDBOX_REGION"],
    )
    code, said = await run_cli("setup", "mars", environment=environment, directory=tmp_path)
    assert code == 2
    assert "there are: vercel, deno" in said

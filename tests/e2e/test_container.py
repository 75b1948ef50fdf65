"""Orion from its image: what is in it, that it answers locked up, and what it says when it cannot."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.e2e.container import HARDENED, IMAGE, USER_ID, OrionContainer, build_image
from tests.e2e.docker_world import docker, inspect, open_docker_orion, prepared_image
from tests.e2e.harness import open_world, text_of
from tests.e2e.orion_process import new_state_dir
from tests.forking import REPOSITORY

pytestmark = [pytest.mark.e2e, pytest.mark.docker, pytest.mark.long, pytest.mark.timeout(600)]

MAX_IMAGE_BYTES = 400_000_000
HEALTHY_WITHIN_S = 60.0
"""Of a machine with other tests on it. What it takes on an idle one, `make bench` says."""


_INSTALLED = """
from importlib.metadata import distributions
print(*(one.name.lower().replace("_", "-") for one in distributions()))
"""


def _locked(path: str) -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+)==", (REPOSITORY / path).read_text(), re.MULTILINE))


@pytest.fixture(scope="module")
def image() -> str:
    return build_image()


@pytest.fixture(scope="module")
def prepared() -> str:
    return prepared_image()


def run_image(*arguments: str, options: tuple[str, ...] = ()) -> tuple[int, str]:
    """Exit code and output of a container that ends by itself."""
    argv = ["docker", "run", "--rm", "--network", "none", *HARDENED, *options, IMAGE, *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def test_what_is_in_the_image(image: str) -> None:
    """Small, no root, compiled, with what the lock names and nothing else; no file of it can be written to."""
    (found,) = inspect("image", [image])
    assert found["Size"] <= MAX_IMAGE_BYTES
    assert found["Config"]["User"] == f"{USER_ID}:{USER_ID}"
    python = ("run", "--rm", "--entrypoint", "/opt/orion/bin/python", image, "-c")
    installed = set(docker(*python, _INSTALLED).split())
    assert installed <= _locked("container/requirements.lock") | {"orion"}
    assert {"aiodocker", "psycopg", "vercel-sandbox", "deno-sandbox"} <= installed
    compiled = docker("run", "--rm", "--entrypoint", "find", image, "/opt/orion", "-name", "*.pyc")
    assert "/app/__pycache__/main.cpython-" in compiled
    writable = docker(
        *("run", "--rm", "--entrypoint", "find", image, "/", "-xdev", "(", "!", "-readable"),
        *("-prune", ")", "-o", "(", "-writable", "!", "-type", "l", "-print", ")"),
    )
    assert set(writable.split()) == {"/tmp", "/var/tmp", "/var/lib/orion"}  # noqa: S108 - the image's


@pytest.mark.usefixtures("image")
def test_what_it_says_when_it_cannot(tmp_path: Path) -> None:
    """Nothing set, no engine, a worker without PostgreSQL, a directory that is not its own: a sentence and an exit code each."""
    code, said = run_image()
    assert (code, "SLACK_BOT_TOKEN" in said) == (2, True), said
    slack = ("SLACK_BOT_TOKEN=xoxb-1", "SLACK_SIGNING_SECRET=s", "ANTHROPIC_API_KEY=k")
    options = tuple(word for pair in slack for word in ("--env", pair))
    code, said = run_image("worker", options=options)
    assert (code, "ORION_DATABASE_URL" in said) == (2, True), said
    tmp_path.chmod(0o700)
    mounted = ("--volume", f"{tmp_path}:/var/lib/orion")
    code, said = run_image(options=(*options, *mounted))
    assert (code, "/var/lib/orion" in said) == (1, True), said
    assert "Traceback" not in said
    own = ("--tmpfs", f"/var/lib/orion:uid={USER_ID},mode=700")
    code, said = run_image(options=(*options, *own, "--env", "ORION_SANDBOX=docker"))
    assert (code, "DOCKER_HOST" in said) == (1, True), said
    code, said = run_image(options=(*options, *own))
    assert (code, "ORION_SANDBOX=auto took local: no Docker" in said) == (1, True), said


@pytest.mark.usefixtures("image")
async def test_it_answers_locked_up(prepared: str, tmp_path: Path) -> None:
    """A signed mention is answered from a read-only container without privileges; killed, the next one goes on; stopped, it exits with 0."""
    async with (
        open_world() as world,
        open_docker_orion(world, new_state_dir(tmp_path), prepared, OrionContainer) as stage,
    ):
        orion = stage.orion
        assert isinstance(orion, OrionContainer)
        await orion.until_healthy(timeout_s=HEALTHY_WITHIN_S)
        ts = await stage.client.say("@Orion run: id -u; echo 4711 > notes")
        assert "10001" in text_of(await stage.answer(ts))

        host = orion.inspect()["HostConfig"]
        assert (host["ReadonlyRootfs"], host["CapDrop"], host["Privileged"]) == (
            True,
            ["ALL"],
            False,
        )
        status = docker(
            "exec", orion.container, "grep", "-E", "^(Uid|CapEff|NoNewPrivs)", "/proc/1/status"
        )
        assert status.split() == [
            *("Uid:", *[str(USER_ID)] * 4),
            *("CapEff:", "0" * 16, "NoNewPrivs:", "1"),
        ]

        slow = await stage.client.say("@Orion !slow 6")
        await stage.client.wait_for_reply(slow, lambda reply: "I write slowly" in text_of(reply))
        await orion.kill9()
        await orion.start()
        await stage.answer(slow)
        assert "4711" in await stage.ask("@Orion run: cat notes", thread_ts=ts)
        assert await orion.stop() == 0
        assert orion.log_lines("service.stopped") != []

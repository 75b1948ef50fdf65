"""What a prepared repository saves: from a question in a new thread to its agent's first request, against a set-up that each thread runs."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

from app.web.hosting import serve
from tests.bench.pool import first_request_after, open_orion
from tests.bench.scale import Bench
from tests.bench.table import Row
from tests.bench.turns import FIRST_ANSWER_TIMEOUT_S, QUESTION, Scene, ask, open_scene
from tests.docker_image import ensure_image
from tests.e2e.docker_world import lend_environment, namespace_of, prepared_image, remove_images
from tests.fake_slack_client import FakeSlackClient, open_client
from tests.git_server import TOKEN, GitServer
from tests.waiting import until

REPO = "acme/large"
FILES, DIRECTORIES = 5_000, 100
INSTALL = 'python3 -c \'import os; [(os.makedirs(f"deps/{n % 500}", exist_ok=True), open(f"deps/{n % 500}/{n}", "wb").write(os.urandom(30000))) for n in range(10000)]\''
"""300 MB in 10,000 files, without a download."""
QUESTIONS = 5
PREPARED_TIMEOUT_S = 120.0
SETTLE_S = 8.0
"""Until what the last thread took is there again for the next."""


async def measure_prepared(bench: Bench) -> Sequence[Row]:
    """Local."""
    return (await _measure(bench, "local", target_s=2.0),)


async def measure_prepared_in_docker(bench: Bench) -> Sequence[Row]:
    """In containers."""
    return (await _measure(bench, "docker", target_s=3.0),)


async def _measure(bench: Bench, kind: str, *, target_s: float) -> Row:
    """Medians, in one run."""
    directory = bench.directory / f"prepared-{kind}"
    directory.mkdir()
    server = GitServer(root=directory / "git")
    files = {f"d{number % DIRECTORIES}/f{number}": f"{number}\n" * 200 for number in range(FILES)}
    await asyncio.to_thread(server.filled, REPO, files)
    took_s: dict[str, float] = {}
    for key in ("init", "setup"):
        toml = f"[repositories.\"{REPO}\"]\n{key} = ['''{INSTALL}''']\n"
        (directory / "orion.toml").write_text(toml)
        async with (
            serve(server.app()) as url,
            open_scene(replace(bench, directory=directory)) as scene,
            _given(kind, scene) as settings,
            open_client(scene.world.url) as person,
        ):
            github = {"GITHUB_TOKEN": TOKEN, "ORION_GITHUB_URL": url}
            async with open_orion(scene, {**settings, **github}, pool_size=0):
                await ask(person, timeout_s=FIRST_ANSWER_TIMEOUT_S)
                await _question(scene, person)
                if key == "setup":
                    await until(
                        lambda: "repository.prepared" in _log(scene), timeout_s=PREPARED_TIMEOUT_S
                    )
                found = []
                for _ in range(QUESTIONS):
                    await asyncio.sleep(SETTLE_S)
                    found.append(await _question(scene, person))
            took_s[key] = median(found)
    return Row(
        figure=f"question to first model request in a prepared repository of 5,000 files and 300 MB, {kind} (baseline: set up in the thread)",
        unit="s",
        orion=took_s["setup"],
        baseline=took_s["init"],
        target=target_s,
    )


@asynccontextmanager
async def _given(kind: str, scene: Scene) -> AsyncIterator[Mapping[str, str]]:
    if kind == "local":
        yield {}
        return
    image = await asyncio.to_thread(ensure_image)
    prepared = await asyncio.to_thread(prepared_image)
    namespace = namespace_of(scene.state_dir)
    await asyncio.to_thread(lend_environment, prepared, namespace)
    try:
        yield {"ORION_SANDBOX": "docker", "ORION_DOCKER_IMAGE": image}
    finally:
        await asyncio.to_thread(remove_images, namespace)


async def _question(scene: Scene, person: FakeSlackClient) -> float:
    root = await person.say(f"@Orion repo={REPO} {QUESTION}")
    await person.wait_for_reply(
        root, lambda reply: "offline model" in str(reply["text"]), timeout_s=PREPARED_TIMEOUT_S
    )
    return await first_request_after(scene, root)


def _log(scene: Scene) -> str:
    return Path(scene.bench.directory, f"app.cli-{scene.port}.log").read_text()

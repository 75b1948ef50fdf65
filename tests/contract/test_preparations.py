"""What a repository's set-up may do, and what comes of it: in real sandboxes, with a real broker and git's own server."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from app.compose.brokers import open_broker
from app.egress.hosts import HostLists
from app.runs.testing import Ground, PreparationError, Preparations, RepositoryPolicy
from app.settings.settings import load_settings
from app.web.hosting import serve
from sandbox_runtime.lifecycle import open_sandbox
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.providers.docker import DockerSettings
from sandbox_runtime.providers.docker.provider import DockerProvider
from sandbox_runtime.providers.local.provider import LocalProvider
from sandbox_runtime.types import SandboxLimits, SandboxSpec, SnapshotId
from tests.docker_image import ensure_image
from tests.git_server import TOKEN, GitServer

pytestmark = pytest.mark.timeout(180)

KINDS = [
    pytest.param("local", marks=pytest.mark.bubblewrap),
    pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.long]),
]
REPO = "acme/api"
MAX_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    provider: SandboxProvider
    ground: Ground
    policy: RepositoryPolicy
    state_dir: Path
    server: GitServer

    def with_lines(self, *lines: str, repo: str = REPO, timeout_s: float = 60.0) -> Preparations:
        return Preparations(
            provider=self.provider,
            policy=replace(self.policy, setup={repo: lines}),
            hosts=HostLists(),
            mask=str,
            rest_s=0,
            setup_timeout_s=timeout_s,
        )

    async def run(self, workspace_id: SnapshotId, *argv: str) -> str:
        """What a command prints in a new sandbox that begins there."""
        spec = SandboxSpec(workspace_id=workspace_id)
        async with open_sandbox(self.provider, spec) as sandbox:
            done = await sandbox.exec(argv, timeout_s=30)
            return done.text + done.error_text


@asynccontextmanager
async def _open_provider(kind: str, state_dir: Path) -> AsyncIterator[SandboxProvider]:
    if kind == "local":
        async with LocalProvider(state_dir) as local:
            await local.ensure_ready()
            yield local
        return
    image = await asyncio.to_thread(ensure_image)
    async with DockerProvider(
        DockerSettings(name=f"prepare-{state_dir.name}", image=image)
    ) as docker:
        await docker.ensure_ready()
        yield docker
        for saved in await docker.list_snapshots():
            await docker.delete_snapshot(saved.id)


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short, for its sockets; sandboxes, which do not run as root, reach through it."""
    with TemporaryDirectory(prefix="prepare-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture(params=KINDS)
async def scene(request: pytest.FixtureRequest, directory: Path) -> AsyncIterator[Scene]:
    server = GitServer(root=directory / "git")
    server.filled(REPO, {"README": "one\n"})
    state_dir = directory / f"s{directory.name[-6:].lower().replace('_', 'x')}"
    async with serve(server.app()) as url:
        given = {"orion_state_dir": state_dir, "orion_github_url": url, "github_token": TOKEN}
        settings = load_settings(env_file=None, given=given)
        async with (
            _open_provider(request.param, state_dir) as provider,
            open_broker(settings, directory / "door") as broker,
        ):
            yield Scene(
                provider=provider,
                ground=Ground(environment_id=None, broker=broker, limits=SandboxLimits()),
                policy=RepositoryPolicy(
                    github_url=url,
                    git_name="Orion",
                    git_email="orion@example.com",
                    pull_requests="never",
                    max_bytes=MAX_BYTES,
                ),
                state_dir=state_dir,
                server=server,
            )


async def test_what_it_leaves(scene: Scene) -> None:
    """Files, and nothing that runs; it has seen no token."""
    told: list[str] = []
    lines = (
        "env > ../env; mkdir deps; echo x > deps/one",
        "(setsid sh -c 'while :; do date >> ../alive; sleep 0.05; done' &) ; sleep 0.3",
    )
    saved = await scene.with_lines(*lines).prepare(REPO, scene.ground, tell=told.append)
    assert told == ["cloning", *lines, "saving"]
    looked = (
        "cat api/deps/one env; wc -l < alive; sleep 0.5; wc -l < alive; git -C api status --short"
    )
    said = await scene.run(saved.id, "sh", "-c", looked)
    first, *env, before, after = said.splitlines()
    assert first == "x"
    assert before == after
    assert TOKEN not in "".join(env)
    assert [info for info in await scene.provider.list() if info.running] == []


async def test_what_it_makes_of_git_reaches_no_thread(scene: Scene) -> None:
    """Its configuration is as the clone left it, and there are no hooks."""
    lines = (
        "git config core.fsmonitor 'touch /tmp/ran'; git config remote.origin.url https://x.test/",
        "mkdir -p .git/hooks; cp /bin/true .git/hooks/post-checkout",
    )
    saved = await scene.with_lines(*lines).prepare(REPO, scene.ground)
    said = await scene.run(saved.id, "sh", "-c", "cat api/.git/config; ls api/.git")
    assert "fsmonitor" not in said
    assert f"url = {scene.policy.github_url}/{REPO}.git" in said
    assert "hooks" not in said.splitlines()
    assert "email = orion@example.com" in said


@pytest.mark.long
@pytest.mark.parametrize(
    ("line", "timeout_s", "why"),
    [
        ("sleep 600", 5, "it took too long"),
        (
            "dd if=/dev/zero of=big bs=1M count=200 2>/dev/null; sleep 60",
            90,
            "it took too much disk",
        ),
        ("yes", 90, "it printed too much"),
        ("kill -9 $$", 90, "exit code 137"),
        ("no-such-program", 90, "exit code 127"),
    ],
    ids=["hangs", "disk", "output", "killed", "missing"],
)
async def test_what_ends_it(scene: Scene, line: str, timeout_s: float, why: str) -> None:
    """Nothing is kept of it; what was prepared before stays."""
    before = await scene.with_lines("true").prepare(REPO, scene.ground)
    preparations = scene.with_lines(line, timeout_s=timeout_s)
    with pytest.raises(PreparationError, match=why) as caught:
        await preparations.prepare(REPO, scene.ground)
    assert f"line 1, `{line}`" in str(caught.value)
    names = [ref.id for ref in await scene.provider.list_snapshots() if ref.name != "base"]
    assert names == [before.id]
    assert [info for info in await scene.provider.list() if info.running] == []


@pytest.mark.parametrize("scene", KINDS[:1], indirect=True)
async def test_what_leaves_no_clone(scene: Scene) -> None:
    """A set-up that removes git's files, and a repository without a commit, are told as what they are."""
    with pytest.raises(PreparationError, match=r"after its setup: there is no \.git directory"):
        await scene.with_lines("rm -rf .git").prepare(REPO, scene.ground)
    with pytest.raises(PreparationError, match="after its setup: "):
        await scene.with_lines("echo nonsense > .git/HEAD").prepare(REPO, scene.ground)
    scene.server.bare("acme/empty")
    with pytest.raises(PreparationError, match="there is no commit in it yet"):
        await scene.with_lines("true", repo="acme/empty").prepare("acme/empty", scene.ground)


async def test_a_failure_is_told_once_and_not_repeated(scene: Scene) -> None:
    preparations = scene.with_lines("exit 3")
    async with preparations.open():
        assert await preparations.find(REPO, scene.ground) is None
        async with asyncio.timeout(60):
            while not (told := preparations.take_failure(REPO, None)):
                await asyncio.sleep(0.02)
        assert "exit code 3" in told
        assert preparations.take_failure(REPO, None) == ""
        assert await preparations.find(REPO, scene.ground) is None
        await asyncio.sleep(0.2)
        assert preparations.take_failure(REPO, None) == ""


async def test_it_is_given_up_at_the_end(scene: Scene) -> None:
    """A service that ends in the middle leaves no sandbox."""
    preparations = scene.with_lines("sleep 600", timeout_s=600)
    async with preparations.open():
        assert await preparations.find(REPO, scene.ground) is None
        async with asyncio.timeout(60):
            while not await scene.provider.list():
                await asyncio.sleep(0.02)
    assert [info for info in await scene.provider.list() if info.running] == []
    assert preparations.take_failure(REPO, None) == ""


@pytest.mark.parametrize("scene", KINDS[:1], indirect=True)
async def test_a_copy_is_ready_for_the_next_one(scene: Scene) -> None:
    """One at a time; nobody shares files with another, or with what was saved."""
    saved = await scene.with_lines("echo one > deps").prepare(REPO, scene.ground)
    copy = scene.state_dir / "copies" / saved.id
    assert (copy / "work/api/deps").read_text() == "one\n"
    change = ("sh", "-c", "cat api/deps; echo two > api/deps; ls -ld . | cut -c1-10")
    assert await scene.run(saved.id, *change) == "one\ndrwxr-xr-x\n"
    assert not copy.exists()
    assert await scene.run(saved.id, *change) == "one\ndrwxr-xr-x\n"
    await scene.provider.keep_copy(saved.id)
    await scene.provider.keep_copy(saved.id)
    assert await scene.run(saved.id, *change) == "one\ndrwxr-xr-x\n"
    await scene.provider.keep_copy(saved.id)
    await scene.provider.delete_snapshot(saved.id)
    assert list(copy.parent.iterdir()) == []
    await scene.provider.keep_copy(saved.id)
    assert list(copy.parent.iterdir()) == []

"""Orion's own git at work as in a sandbox, by way of the real broker, against git's own server."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import httpx

from agent_scripts.adapter import AgentCommand, AgentPaths
from agent_scripts.repository import (
    RepositoryReport,
    RepositoryTask,
    parse_report,
    repository_command,
)
from app.brokerage.broker import create_broker_app
from app.brokerage.credentials import GitCredentials, GitRemotes
from app.brokerage.git import GitBroker
from app.brokerage.registry import GrantRegistry
from app.runs.testing import GrantHooks, ModelGrant, RepositoryGrant, RunId, SystemClock, git_token
from app.web.hosting import serve
from tests.git_server import TOKEN, GitServer, git
from tests.plain_http import NO_TLS

OWN = "orion/happy-fox"
NAMES = (OWN, f"{OWN}-4711", "orion-happy-fox", "orion-happy-fox-4711")


@dataclass(kw_only=True)
class RepositoryRig:
    """One thread, in its directory `work`."""

    server: GitServer
    bare: Path
    work: Path
    registry: GrantRegistry
    url: str
    """That is granted."""
    task: RepositoryTask
    effects: int = 0
    other: Path = field(init=False)
    """Where somebody else works in the repository."""

    def __post_init__(self) -> None:
        self.other = self.work.parent / "other"

    async def clone(self, branch: str = "") -> RepositoryReport:
        """As Orion does; from then on its branch has its name."""
        self.task = replace(self.task, branch=branch)
        report = await self._run("clone", grant="")
        if report.problem is None:
            self.task = replace(self.task, own_branches=(report.own_branch,))
        return report

    async def prepare(self, *left: str) -> None:
        """Clones it for nobody yet, and has a set-up leave these files."""
        await self.begin_to_prepare()
        for name in left:
            (self.work / name).parent.mkdir(parents=True, exist_ok=True)
            (self.work / name).write_text("installed\n")
        await self.seal()

    async def begin_to_prepare(self) -> None:
        """Clones it for nobody yet."""
        self.task = replace(self.task, own_branches=("orion/prepared",))
        report = await self._run("clone", grant="")
        assert report.problem is None
        self.task = replace(self.task, git_config=report.git_config)

    async def seal(self) -> None:
        """Ends what was begun."""
        assert (await self._run("seal", grant="")).problem is None
        self.task = replace(self.task, own_branches=NAMES)

    async def ignore(self) -> None:
        """As after the operator's commands."""
        assert (await self._run("ignore", grant="")).problem is None

    async def publish(self) -> RepositoryReport:
        return await self._run("publish", grant=self.task.own_branches[0])

    def by_somebody(self, *changes: str, branch: str = "main", new: str = "") -> None:
        """Files that somebody else adds, as one commit on that branch, perhaps under another name."""
        if not self.other.exists():
            git(self.work.parent, "clone", "-q", "--no-checkout", str(self.bare), str(self.other))
        git(self.other, "fetch", "-q", "origin", f"+refs/heads/{branch}:refs/heads/theirs")
        git(self.other, "checkout", "-q", "theirs")
        for name in changes:
            (self.other / name).write_text("theirs\n")
        git(self.other, "add", "-A")
        git(self.other, "commit", "-q", "-m", "theirs")
        git(self.other, "push", "-q", "origin", f"HEAD:refs/heads/{new or branch}")
        git(self.other, "checkout", "-q", "--detach")

    def published(self) -> list[str]:
        """Files on the thread's branch at the server."""
        listed = git(self.bare, "ls-tree", "-r", "--name-only", self.task.own_branches[0])
        return listed.splitlines()

    async def _run(
        self, action: Literal["clone", "publish", "seal", "ignore"], *, grant: str
    ) -> RepositoryReport:
        granted = ModelGrant(
            run_id=RunId("run_1"),
            models=("m",),
            expires_at=datetime.now(UTC) + timedelta(minutes=2),
            repository=RepositoryGrant(url=self.url, branch=grant),
        )
        with self.registry.open_grant(
            granted, GrantHooks(on_call=lambda _call: None, on_effect=self._note)
        ) as token:
            task = replace(self.task, action=action, token=git_token(token))
            run = self.work.parent / "run"
            paths = AgentPaths(
                work=str(self.work.parent), home=str(run), run=str(run), environment=str(run)
            )
            command = repository_command(task, paths)
            _write(command)
            done = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, *command.argv[1:]],
                capture_output=True,
                check=False,
            )
            return parse_report(done.stdout.decode() or done.stderr.decode())

    async def _note(self) -> None:
        self.effects += 1


def _write(command: AgentCommand) -> None:
    for file in command.files:
        path = Path(file.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.data)


@asynccontextmanager
async def open_repository(
    directory: Path, *, is_empty: bool = False
) -> AsyncIterator[RepositoryRig]:
    """With one commit on `main`, the default branch, unless it is empty."""
    server = GitServer(root=directory / "git")
    bare = server.bare("acme/api") if is_empty else server.filled("acme/api", {"README": "one\n"})
    registry = GrantRegistry(signing_key=b"k" * 32, clock=SystemClock())
    async with (
        serve(server.app()) as url,
        httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http,
    ):
        broker = GitBroker(
            registry=registry,
            credentials=GitCredentials(remotes=GitRemotes(github_url=url, token=TOKEN)),
            http=http,
            max_bytes=2**30,
        )
        async with serve(create_broker_app(broker.router())) as address:
            work = directory / "thread" / "api"
            work.parent.mkdir()
            task = RepositoryTask(
                action="clone",
                broker=address,
                token="",
                url=f"{url}/acme/api.git",
                directory=str(work),
                branch="",
                own_branches=NAMES,
                name="Orion",
                email="orion@example.com",
                timeout_s=30,
                max_bytes=2**30,
                message="Change it",
            )
            yield RepositoryRig(
                server=server, bare=bare, work=work, registry=registry, url=task.url, task=task
            )

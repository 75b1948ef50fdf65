"""`compose.yaml` as an operator brings it up: images made without a registry, the commands that `docs/operate.md` gives."""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from app.settings.settings import host_environment
from tests.docker_image import ensure_image
from tests.e2e.container import IMAGE, USER_ID
from tests.e2e.docker_world import docker, objects_of, remove_images
from tests.forking import REPOSITORY

COMMAND_TIMEOUT_S = 240.0
_OPERATE = REPOSITORY / "docs" / "operate.md"
_POSTGRES = r"""
FROM {base}
USER root
RUN echo postgres:x:999:999::/var/lib/postgresql:/bin/sh >> /etc/passwd && echo postgres:x:999: >> /etc/group \
 && install -d -o 999 -g 999 -m 700 /var/lib/postgresql/data && install -d /usr/local/bin \
 && ln -s /usr/lib/postgresql/*/bin/* /usr/local/bin/
ENV PGDATA=/var/lib/postgresql/data
USER postgres
VOLUME /var/lib/postgresql/data
CMD set -e; \
    if [ ! -s $PGDATA/PG_VERSION ]; then \
      printf %s "$POSTGRES_PASSWORD" > /tmp/password; \
      initdb --username=$POSTGRES_USER --pwfile=/tmp/password --auth-local=trust --auth-host=scram-sha-256 --locale=C.UTF-8; \
      echo "host all all all scram-sha-256" >> $PGDATA/pg_hba.conf; \
      echo "CREATE DATABASE $POSTGRES_DB" | postgres --single postgres; \
    fi; \
    exec postgres -c listen_addresses='*' -c unix_socket_directories=/var/run/postgresql
"""
"""As the image that `compose.yaml` names: its variables, its user, its directory."""


def postgres_image() -> str:
    base = ensure_image(("bash", "postgresql-15", "sed", "coreutils", "dash"), wanted=())
    name = "orion-test-postgres"
    docker("build", "--quiet", "--tag", name, "-", stdin=_POSTGRES.format(base=base))
    return name


def nginx_image() -> str:
    return ensure_image(("bash", "nginx"), wanted=())


def written(heading: str) -> list[list[str]]:
    """The blocks of commands below a heading of `docs/operate.md`, in order."""
    text = _OPERATE.read_text()
    (section,) = re.findall(rf"^#+ {heading}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"(?:^    .+\n)+", section, re.MULTILINE)
    return [[line.strip() for line in block.splitlines()] for block in blocks]


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """A project directory, and its commands."""

    directory: Path
    project: str
    namespaces: list[str] = field(default_factory=list)
    """Of sandboxes and images that go with the project."""

    async def sh(self, command: str) -> str:
        """What a command prints, with Debian's `docker-compose` for `docker compose`; it must succeed."""
        command = command.replace("docker compose", "docker-compose")
        process = await asyncio.create_subprocess_shell(
            command,
            cwd=self.directory,
            env={**_environment(), "COMPOSE_PROJECT_NAME": self.project},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(COMMAND_TIMEOUT_S):
                said, complained = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, f"{command}: {complained.decode()}\n{said.decode()}"
        return said.decode()

    async def containers(self, service: str) -> list[str]:
        """Ids, of those that run."""
        return (await self.sh(f"docker compose ps -q {service}")).split()

    async def log(self, container: str) -> str:
        """All that it has printed."""
        return await self.sh(f"docker logs {container} 2>&1")


def _environment() -> dict[str, str]:
    """The client's own; no setting of the tests' host gets in."""
    found = host_environment()
    return {name: found[name] for name in ("PATH", "HOME", "DOCKER_HOST") if name in found}


@asynccontextmanager
async def open_compose(
    directory: Path, settings: Mapping[str, str], *, project: str
) -> AsyncIterator[Composed]:
    """A project with these settings, nothing started; at the end nothing is left of it, volumes included."""
    shutil.copy(REPOSITORY / "compose.yaml", directory)
    shutil.copytree(REPOSITORY / "container", directory / "container")
    state_dir = directory / "state"
    state_dir.mkdir(mode=0o700)
    shutil.chown(state_dir, USER_ID, USER_ID)
    values = {
        "SERVICE_IMAGE": IMAGE,
        "NGINX_IMAGE": await asyncio.to_thread(nginx_image),
        "POSTGRES_IMAGE": await asyncio.to_thread(postgres_image),
        "ORION_STATE_DIR": str(state_dir),
        **settings,
    }
    lines = [f"{name}={value}\n" for name, value in values.items()]
    (directory / ".env").write_text("".join(lines))
    composed = Composed(directory=directory, project=project)
    try:
        yield composed
    finally:
        await composed.sh("docker compose down --volumes --remove-orphans --timeout 5")
        for namespace in composed.namespaces:
            left = await asyncio.to_thread(objects_of, namespace, "ps", "--all")
            if left:
                await asyncio.to_thread(docker, "rm", "--force", "--volumes", *left)
            await asyncio.to_thread(remove_images, namespace)

"""Local and Docker sandboxes with a proxy of their own, and what package tools install in them by it."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from agent_scripts.inside import relay
from app.aio import open_task_group
from app.egress.hosts import HostEntry, HostSet, read_items
from app.egress.proxy import EgressGrant, EgressProxy, dial
from app.egress.sets import learn_sets
from app.egress.tally import Tally
from app.egress.upstream import Upstream
from app.settings.settings import host_environment
from sandbox_runtime import BrokeredNetwork, Sandbox, SandboxSpec, open_sandbox
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.providers.docker import DockerSettings
from sandbox_runtime.providers.docker.provider import DockerProvider
from sandbox_runtime.providers.local.provider import LocalProvider
from tests.docker_image import WANTED, ensure_image

INSTALL_TIMEOUT_S: Final = 200.0
PUBLIC_ADDRESS: Final = "93.184.215.14"
"""Any that is public; nobody dials it."""
CA_NAMES: Final = ("SSL_CERT_FILE", "PIP_CERT", "CURL_CA_BUNDLE")
INSTALLS: Final = {
    "pip": (
        "python3 -m venv v && v/bin/pip install --quiet six && v/bin/python -c 'import six; print(six.__name__)'",
        "six",
    ),
    "uv": (
        "python3 -m venv v && v/bin/pip install --quiet uv && v/bin/uv pip install --quiet --python v/bin/python idna && v/bin/python -c 'import idna; print(idna.__name__)'",
        "idna",
    ),
    "npm": (
        "npm install --silent --no-audit --no-fund is-odd && node -p 'require(\"is-odd\")(3)'",
        "true",
    ),
    "pnpm": (
        "npm install --silent --no-audit --no-fund --prefix tool pnpm@9 && mkdir app && cd app && ../tool/node_modules/.bin/pnpm add is-even@1 && node -p 'require(\"is-even\")(4)'",
        "true",
    ),
    "apt": (
        "export APT_CONFIG=$PWD/apt.conf; apt-get -qq update && apt-get -qq download hello && ls *.deb",
        "hello_",
    ),
}
"""What installs and tries something, and what that prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A sandbox whose proxy lets it reach what package tools of this machine install from."""

    sandbox: Sandbox
    tally: Tally
    hosts: Sequence[HostEntry]

    async def run(self, script: str, *, timeout_s: float = INSTALL_TIMEOUT_S) -> tuple[int, str]:
        """Returns the exit code and what was printed."""
        command = ["python3", "-I", self._relay, self.sandbox.paths.broker, "sh", "-c"]
        done = await self.sandbox.exec([*command, f"exec 2>&1; {script}"], timeout_s=timeout_s)
        return done.exit_code, done.text

    @property
    def _relay(self) -> str:
        return f"{self.sandbox.paths.work}/relay.py"


async def hosts_of_packages() -> Sequence[HostEntry]:
    """What package tools of this machine install from."""
    items = read_items(["private:packages"])
    sets = await learn_sets(one for one in items if isinstance(one, HostSet))
    return tuple(dict.fromkeys(host for found in sets.values() for host in found))


@asynccontextmanager
async def open_place(
    kind: str,
    directory: Path,
    hosts: Sequence[HostEntry],
    *,
    leads_to: int | None = None,
    packages: Sequence[str] = ("apt",),
) -> AsyncIterator[Place]:
    """`leads_to`: the port of this machine that every host is; None = they are where they are. `packages`: of a container's image, beside the usual ones."""
    tally = Tally()

    async def look_up_all(_name: str, _port: int) -> Sequence[str]:
        return [PUBLIC_ADDRESS]

    async def dial_here(_address: str, _port: int) -> Upstream:
        return await dial("127.0.0.1", leads_to or 0)

    door = directory / "door"
    grant = EgressGrant(run_id="run_1", entries=hosts, tally=tally)
    spec = SandboxSpec(
        network=BrokeredNetwork(endpoint=str(door / "sock")),
    )
    async with (
        open_provider(kind, directory / "state", packages) as provider,
        open_task_group() as group,
        (
            EgressProxy(group)
            if leads_to is None
            else EgressProxy(group, look_up=look_up_all, dial=dial_here)
        ).listen(door / "egress", lambda: grant),
        open_sandbox(provider, spec) as sandbox,
    ):
        source = inspect.getsource(relay).encode()
        await sandbox.write_files({f"{sandbox.paths.work}/relay.py": source, **_apt(sandbox)})
        yield Place(sandbox=sandbox, tally=tally, hosts=hosts)


@asynccontextmanager
async def open_provider(
    kind: str, state_dir: Path, packages: Sequence[str]
) -> AsyncIterator[SandboxProvider]:
    env = host_environment()
    ca_bundle = next((Path(env[name]) for name in CA_NAMES if env.get(name)), None)
    if kind == "local":
        async with LocalProvider(state_dir, ca_bundle=ca_bundle) as local:
            yield local
    else:
        settings = DockerSettings(name=f"egress-{state_dir.name[-8:].lower().replace('_', 'x')}")
        image = await asyncio.to_thread(ensure_image, wanted=(*WANTED, *packages))
        async with DockerProvider(replace(settings, image=image, ca_bundle=ca_bundle)) as docker:
            yield docker


def _apt(sandbox: Sandbox) -> dict[str, bytes]:
    """Returns what this machine's apt installs from, and its keys, for one that is not root."""
    etc = Path("/etc/apt")
    found = [etc / "sources.list", *etc.glob("sources.list.d/*"), *etc.glob("trusted.gpg.d/*")]
    work = sandbox.paths.work
    places = {"Etc": "apt", "State": "state", "State::status": "installed", "Cache": "cache"}
    settings = "".join(f'Dir::{name} "{work}/{path}";\n' for name, path in places.items())
    return {
        f"{work}/apt.conf": settings.encode(),
        f"{work}/installed": b"",
        f"{work}/state/lists/partial/none": b"",
        f"{work}/cache/archives/partial/none": b"",
    } | {
        f"{work}/apt/{path.relative_to(etc)}": path.read_bytes() for path in found if path.is_file()
    }

"""The named network of local and Docker sandboxes: real package tools install by the proxy, and nothing else gets out."""

import asyncio
import io
import shlex
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from fastapi import FastAPI, Response

from agent_scripts.repository import git_environment
from app.aio import open_task_group
from app.egress.hosts import HostEntry
from app.web.hosting import serve
from tests.certificates import issue
from tests.egress.around import PAST_PROXY, attempts_of
from tests.egress.place import INSTALLS, Place, hosts_of_packages, open_place
from tests.git_server import TOKEN, GitServer, git
from tests.long import long_but
from tests.ports import own_address

pytestmark = [pytest.mark.bubblewrap, pytest.mark.timeout(300)]

KINDS = ("local", pytest.param("docker", marks=(pytest.mark.docker, pytest.mark.long)))
ELSEWHERE, LISTED = "elsewhere.example", "git.listed.example"


@pytest.fixture
def directory() -> Iterator[Path]:
    """Sandboxes, which do not run as root, reach through it."""
    with TemporaryDirectory(prefix="egress-") as name:
        Path(name).chmod(0o711)
        (Path(name) / "door").mkdir(mode=0o711)
        yield Path(name)


@pytest.fixture(params=KINDS)
async def place(request: pytest.FixtureRequest, directory: Path) -> AsyncIterator[Place]:
    async with open_place(request.param, directory, await hosts_of_packages()) as place:
        yield place


@pytest.mark.long
@pytest.mark.parametrize("tool", long_but(list(INSTALLS), lambda tool: tool == "pip"))
async def test_real_tools_install(place: Place, tool: str) -> None:
    """From this machine's own indexes; their hosts are counted."""
    install, shown = INSTALLS[tool]
    code, printed = await place.run(install)
    assert (code, shown in printed) == (0, True), printed[-2000:]
    reached = {use.host for use in place.tally.uses if use.connections}
    assert reached <= {f"{host.name}:{host.port}" for host in place.hosts}
    assert reached
    assert place.tally.received_bytes > 1000


@pytest.mark.long
async def test_whoever_is_refused_is_told_at_once(place: Place) -> None:
    """By curl's exit code for a proxy that refuses; the host is counted with its reason."""
    code, printed = await place.run(f"curl -sS https://{ELSEWHERE}/ 2>&1", timeout_s=20)
    assert (code, "403" in printed) == (56, True), printed
    (refused,) = place.tally.refused
    assert (refused.host, refused.refusals) == (f"{ELSEWHERE}:443", 1)


async def test_no_way_leads_past_the_proxy(place: Place, directory: Path) -> None:
    """Everything that a program can try without it fails, and nothing of it arrives at the host."""
    arrived: list[str] = []

    def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        arrived.append(str(writer.get_extra_info("sockname")))
        writer.close()

    other, abstract = directory / "other", f"orion-{directory.name}"
    host = own_address()
    async with (
        await asyncio.start_server(hear, host, 0) as server,
        await asyncio.start_unix_server(hear, other),
        await asyncio.start_unix_server(hear, f"\0{abstract}"),
    ):
        port = server.sockets[0].getsockname()[1]
        argv = shlex.join(["python3", "-c", PAST_PROXY, host, str(port), str(other), abstract])
        code, printed = await place.run(argv, timeout_s=60)
    lines = printed.splitlines()
    assert (code, len(lines)) == (0, attempts_of(PAST_PROXY)), printed
    assert [line for line in lines if not line.endswith(" fails")] == []
    assert arrived == []


async def test_git_goes_to_the_broker_for_its_own_repository_alone(place: Place) -> None:
    """Others, such as submodules and dependencies, go by the proxy and obey the list."""
    variables = git_environment(
        "token", url="https://git.example/acme/api.git", name="Orion", email="orion@localhost"
    )
    nowhere = "http://127.0.0.1:9"
    settings = " ".join(
        f"{name}={shlex.quote(value.replace('{relay}', nowhere))}"
        for name, value in variables.items()
    )
    for repository, said in (
        ("https://git.example/acme/api.git", "127.0.0.1 port 9"),
        ("https://git.example/acme/api-2.git", "response 403"),
        (f"https://{ELSEWHERE}/lib.git", "response 403"),
    ):
        code, printed = await place.run(f"{settings} git ls-remote {repository}", timeout_s=20)
        assert (code, said in printed) == (128, True), printed
    refused = {use.host for use in place.tally.refused}
    assert refused == {"git.example:443", f"{ELSEWHERE}:443"}


@asynccontextmanager
async def serve_tls(app: FastAPI, directory: Path) -> AsyncIterator[int]:
    """Serves an app over TLS as `LISTED`, with a certificate that it signs itself: `directory/LISTED.pem`; yields the port."""
    context = (await issue(directory, LISTED)).server()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async with serve(app) as url:

        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            plain = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            async with open_task_group() as group:
                group.create_task(copy(reader, plain[1]))
                group.create_task(copy(plain[0], writer))

        async with await asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=context) as server:
            yield int(server.sockets[0].getsockname()[1])


@pytest.mark.parametrize("kind", KINDS)
async def test_submodules_of_listed_hosts_are_fetched(
    kind: str, directory: Path, tmp_path: Path
) -> None:
    """By the proxy, over https; from a host on no list none is."""
    git_hosts = GitServer(root=tmp_path / "git")
    lib = git_hosts.filled("acme/lib", {"lib.txt": "of the submodule"})
    modules = '[submodule "lib"]\n\tpath = lib\n\turl = ../lib.git\n'
    at = git(lib, "rev-parse", "main")
    git_hosts.filled("acme/api", {".gitmodules": modules}, submodule="lib", commit=at)
    astray = modules.replace("../lib.git", f"https://{ELSEWHERE}/lib.git")
    git_hosts.filled("acme/astray", {".gitmodules": astray}, submodule="lib", commit=at)
    async with (
        serve_tls(git_hosts.app(), tmp_path) as port,
        open_place(kind, directory, [HostEntry(name=LISTED)], leads_to=port) as place,
    ):
        trusted = f"{place.sandbox.paths.work}/ca.pem"
        certificate = (tmp_path / f"{LISTED}.pem").read_bytes()
        await place.sandbox.write_files({trusted: certificate})
        clone = f"GIT_SSL_CAINFO={trusted} git clone -q --recursive https://x-access-token:{TOKEN}@{LISTED}/acme"
        code, printed = await place.run(f"{clone}/api.git && cat api/lib/lib.txt")
        assert (code, printed) == (0, "of the submodule"), printed
        code, printed = await place.run(f"{clone}/astray.git")
        assert (code != 0, "response 403" in printed) == (True, True), printed
        reached = {use.host for use in place.tally.uses if use.connections}
        assert reached == {f"{LISTED}:443"}
        assert {use.host for use in place.tally.refused} == {f"{ELSEWHERE}:443"}


GO_MODULE, GO_PREFIX = "example.com/hello", "example.com/hello@v1.0.0"
GO_FILES = {
    "go.mod": f"module {GO_MODULE}\n",
    "main.go": 'package main\n\nfunc main() { println("hello of go") }\n',
}


def go_modules() -> FastAPI:
    """A module proxy with one program. Source: go.dev/ref/mod, "GOPROXY protocol" and "Module zip files", read 2026-11."""
    app, packed = FastAPI(), io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in GO_FILES.items():
            archive.writestr(f"{GO_PREFIX}/{name}", text)
    info, mod = b'{"Version":"v1.0.0"}', GO_FILES["go.mod"].encode()
    files = {"info": info, "mod": mod, "zip": packed.getvalue()}

    @app.get(f"/{GO_MODULE}/@v/v1.0.0.{{kind}}")
    async def get(kind: str) -> Response:
        return Response(files[kind])

    return app


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
async def test_go_installs(kind: str, directory: Path, tmp_path: Path) -> None:
    """A program of a listed module proxy; none of another one."""
    async with (
        serve_tls(go_modules(), tmp_path) as port,
        open_place(
            *(kind, directory, [HostEntry(name=LISTED)]), leads_to=port, packages=("golang-go",)
        ) as place,
    ):
        certificate = (tmp_path / f"{LISTED}.pem").read_bytes()
        await place.sandbox.write_files({f"{place.sandbox.paths.work}/ca.pem": certificate})
        settings = "export SSL_CERT_FILE=$PWD/ca.pem GOPATH=$PWD/go GOCACHE=$PWD/cache GONOSUMDB=*"
        install = f"go install {GO_PREFIX}"
        code, printed = await place.run(
            f"{settings} GOPROXY=https://{LISTED}; {install} && go/bin/hello"
        )
        assert (code, "hello of go" in printed) == (0, True), printed
        other = f"{settings} GOPROXY=https://{ELSEWHERE}; go install {GO_MODULE}@v1.0.1"
        code, printed = await place.run(other)
        assert (code, "Forbidden" in printed) == (1, True), printed
        assert {use.host for use in place.tally.uses if use.connections} == {f"{LISTED}:443"}
        assert {use.host for use in place.tally.refused} == {f"{ELSEWHERE}:443"}

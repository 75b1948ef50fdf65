"""Fetching files of messages, with what Slack, and whoever stands in its way, may answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web
from pydantic import SecretStr

from app.aio import open_task_group
from app.runs.testing import AttachedFile, UnreadableFileError
from app.slack.api import RetryPolicy, SlackApi
from app.slack.connection import create_client
from app.slack.files import SlackFiles

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

TOKEN = "xoxb-never-elsewhere"  # noqa: S105 - made up
MIB = 1024**2
PAGE = "<!DOCTYPE html><title>Sign in</title>"


@dataclass
class FileServer:
    """Slack's file host and `files.info`, and a host that is neither."""

    url: str = ""
    elsewhere: str = ""
    info: dict[str, Any] = field(default_factory=dict)
    refusal: str = ""
    answers: list[Callable[[web.Request], web.StreamResponse]] = field(default_factory=list)
    got: list[str] = field(default_factory=list)
    upload_url: str = ""
    upload_status: int = 200
    uploaded: list[tuple[str, str, bytes, str | None]] = field(default_factory=list)
    """Name, announced length, bytes, and the token that was shown."""
    going: int = 0
    most_going: int = 0
    announced: tuple[str, str] = ("", "")
    shown_elsewhere: list[str | None] = field(default_factory=list)

    async def files_info(self, _: web.Request) -> web.Response:
        self.got.append("files.info")
        if self.refusal:
            return web.json_response({"ok": False, "error": self.refusal})
        return web.json_response({"ok": True, "file": self.info})

    async def file(self, request: web.Request) -> web.StreamResponse:
        self.got.append(request.path)
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return web.Response(text=PAGE, content_type="text/html")
        self.going += 1
        self.most_going = max(self.most_going, self.going)
        await asyncio.sleep(0.01)
        self.going -= 1
        return self.answers.pop(0)(request)

    async def place(self, request: web.Request) -> web.Response:
        self.announced = (request.query["filename"], request.query["length"])
        url = self.upload_url or f"{self.url}/upload/1"
        return web.json_response({"ok": True, "upload_url": url, "file_id": "F7"})

    async def upload(self, request: web.Request) -> web.Response:
        data, shown = await request.read(), request.headers.get("authorization")
        self.uploaded.append((*self.announced, data, shown))
        return web.Response(status=self.upload_status)

    async def foreign(self, request: web.Request) -> web.Response:
        self.shown_elsewhere.append(request.headers.get("authorization"))
        return web.Response(body=b"stolen")

    def of(self, name: str = "a.bin", **fields: Any) -> AttachedFile:
        url = f"{self.url}/files-pri/F1/{name}"
        return AttachedFile(**{"id": "F1", "name": name, "mode": "hosted", "url": url, **fields})


async def serve(application: web.Application) -> tuple[web.AppRunner, str]:
    runner = web.AppRunner(application, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


@pytest.fixture
async def server() -> AsyncIterator[FileServer]:
    here = FileServer()
    slack, foreign = web.Application(), web.Application()
    slack.router.add_get("/api/files.info", here.files_info)
    slack.router.add_get("/files-pri/{path:.*}", here.file)
    slack.router.add_get("/api/files.getUploadURLExternal", here.place)
    slack.router.add_post("/upload/1", here.upload)
    foreign.router.add_route("*", "/{path:.*}", here.foreign)
    runners = [await serve(slack), await serve(foreign)]
    here.url, here.elsewhere = (url for _, url in runners)
    try:
        yield here
    finally:
        for runner, _ in runners:
            await runner.cleanup()


@pytest.fixture
async def files(server: FileServer) -> AsyncIterator[SlackFiles]:
    async with aiohttp.ClientSession() as session:
        base_url = f"{server.url}/api/"
        client = create_client(token=TOKEN, base_url=base_url, session=session)
        api = SlackApi(client, policy=RetryPolicy(attempts=1))
        yield SlackFiles(api, session, token=SecretStr(TOKEN), base_url=base_url)


def body(data: bytes, **fields: Any) -> Callable[[web.Request], web.StreamResponse]:
    return lambda _: web.Response(body=data, **fields)


def moved(url: str) -> Callable[[web.Request], web.StreamResponse]:
    return lambda _: web.Response(status=302, headers={"location": url})


def cut_off(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def reason(files: SlackFiles, file: AttachedFile, *, max_bytes: int = MIB) -> str:
    with pytest.raises(UnreadableFileError) as caught:
        await files.fetch(file, max_bytes=max_bytes)
    return caught.value.reason


@pytest.mark.parametrize("data", [b"", b"x", b"\x00" * MIB], ids=["nothing", "a byte", "the most"])
async def test_a_file_arrives_byte_for_byte(
    server: FileServer, files: SlackFiles, data: bytes
) -> None:
    """Also an empty one, and one that is as large as may be."""
    server.answers = [body(data)]
    assert await files.fetch(server.of(size=len(data)), max_bytes=MIB) == data


async def test_a_login_page_is_no_file(server: FileServer, files: SlackFiles) -> None:
    """Slack answers 200 with it where the app may not read; a page that was attached is a file."""
    page = body(PAGE.encode(), content_type="text/html")
    server.answers = [page, page, page]
    assert await reason(files, server.of(media_type="text/csv")) == "Slack does not let me read it"
    assert "not let me read" in await reason(files, server.of(media_type="text/html", size=7))
    own = server.of("a.html", media_type="text/html", size=len(PAGE))
    assert await files.fetch(own, max_bytes=MIB) == PAGE.encode()


async def test_the_token_is_shown_to_slack_alone(server: FileServer, files: SlackFiles) -> None:
    """Wherever an answer or a message leads: it is not followed to another host, scheme or port."""
    server.answers = [moved(f"{server.elsewhere}/login")]
    assert await reason(files, server.of()) == "Slack does not let me read it"
    for url in (server.elsewhere, "file:///etc/passwd", f"http://{TOKEN}@127.0.0.1/x", "//x"):
        assert await reason(files, server.of(url=url)) == "Slack does not let me read it"
    assert server.shown_elsewhere == []


async def test_slack_may_lead_to_itself(server: FileServer, files: SlackFiles) -> None:
    """Some times, not in a circle."""
    server.answers = [moved("/files-pri/F1/there"), body(b"here")]
    assert await files.fetch(server.of(), max_bytes=MIB) == b"here"
    server.answers = [moved("/files-pri/F1/there")] * 9
    assert await reason(files, server.of()) == "Slack does not let me read it"


async def test_what_a_message_does_not_tell_is_asked(server: FileServer, files: SlackFiles) -> None:
    """Of a file to be asked for, the message has nothing but the id."""
    server.info = {"mode": "hosted", "size": 4, "url_private": f"{server.url}/files-pri/F1/a"}
    server.answers = [body(b"data")]
    assert await files.fetch(AttachedFile(id="F1", name="F1"), max_bytes=MIB) == b"data"
    assert server.got == ["files.info", "/files-pri/F1/a"]


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("missing_scope", "I may not read files here: my operator must grant me files:read"),
        ("file_not_found", "Slack does not know it any more"),
    ],
)
async def test_what_slack_refuses_to_tell(
    server: FileServer, files: SlackFiles, word: str, told: str
) -> None:
    """An app with an older manifest, and a file that is gone."""
    server.refusal = word
    assert await reason(files, AttachedFile(id="F1", name="a")) == told


@pytest.mark.parametrize("mode", ["external", "hidden_by_limit", "tombstone", "email"])
async def test_what_slack_does_not_have_is_not_asked_for(
    server: FileServer, files: SlackFiles, mode: str
) -> None:
    """Each with its own reason."""
    assert await reason(files, server.of(mode=mode))
    assert server.got == []


async def test_a_file_that_is_too_large_is_not_fetched(
    server: FileServer, files: SlackFiles
) -> None:
    """By Slack's word, or when more comes than Slack said; no more than the bound is kept."""
    assert "larger than the 1 MiB" in await reason(files, server.of(size=1024**3))
    assert server.got == []
    server.answers = [body(b"x" * (MIB + 1)), body(b"x" * (MIB + 1))]
    assert "larger than the 1 MiB" in await reason(files, server.of(size=3))
    assert "larger than the 1 MiB" in await reason(files, server.of())


async def test_a_file_that_changed_meanwhile_is_taken_as_it_is(
    server: FileServer, files: SlackFiles
) -> None:
    """Slack tells its new size; what is still not whole is not taken for the file."""
    server.info = {"mode": "hosted", "size": 3, "url_private": f"{server.url}/files-pri/F1/a"}
    server.answers = [body(b"new")]
    assert await files.fetch(server.of(size=100), max_bytes=MIB) == b"new"
    server.answers = [body(b"n"), body(b"new")]
    assert await files.fetch(server.of(size=100), max_bytes=MIB) == b"new"
    server.answers = [body(b"n"), body(b"ne")]
    assert await reason(files, server.of(size=100)) == "it did not arrive whole"


async def test_a_sick_host_costs_the_file_alone(server: FileServer, files: SlackFiles) -> None:
    """Errors, a broken connection, an answer that does not end."""
    server.answers = [lambda _: web.Response(status=503), cut_off, cut_off]
    assert await reason(files, server.of()) == "Slack answers 503"
    assert await reason(files, server.of()) == "Slack could not be reached for it"


async def test_a_pause_that_slack_asks_for_costs_no_file(
    server: FileServer, files: SlackFiles
) -> None:
    server.answers = [
        lambda _: web.Response(status=429, headers={"Retry-After": "1"}),
        lambda _: web.Response(body=b"abc"),
    ]
    assert await files.fetch(server.of(size=3), max_bytes=MIB) == b"abc"
    server.answers = [lambda _: web.Response(status=429, headers={"Retry-After": "0"})] * 9
    assert await reason(files, server.of()) == "Slack answers 429"


async def test_four_at_once(server: FileServer, files: SlackFiles) -> None:
    """More would be more in memory than operators reckon with."""
    server.answers = [body(b"x")] * 9
    async with open_task_group() as group:
        for _ in range(9):
            group.create_task(files.fetch(server.of(), max_bytes=MIB))
    assert server.most_going == 4


async def test_a_file_is_uploaded_for_a_thread(server: FileServer, files: SlackFiles) -> None:
    """As it is; nobody sees it before it is shared."""
    assert await files.upload("a b.bin", b"\x00data") == "F7"
    assert server.uploaded == [("a b.bin", "5", b"\x00data", None)]


async def test_an_upload_goes_to_slack_alone(server: FileServer, files: SlackFiles) -> None:
    """Wherever its answer leads; and what Slack does not take is told."""
    server.upload_url = f"{server.elsewhere}/upload"
    with pytest.raises(UnreadableFileError, match="nowhere that I know"):
        await files.upload("a.bin", b"data")
    server.upload_url, server.upload_status = "", 500
    with pytest.raises(UnreadableFileError, match="Slack answers 500"):
        await files.upload("a.bin", b"data")
    assert server.shown_elsewhere == []

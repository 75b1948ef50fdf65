"""The FileExchange over Slack: files of messages and for threads, by the bot's token, which no other host is shown."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final
from urllib.parse import urljoin, urlsplit

import aiohttp
from pydantic import SecretStr

from app.log import get_logger
from app.runs.history import UnreadableFileError
from app.runs.request import AttachedFile
from app.slack.api import SlackApi, SlackFault, SlackRefusal, asked_pause_s
from app.slack.fields import object_of, text_of

FETCH_TIMEOUT_S: Final = 60.0
"""For one file: 50 MiB at 1 MiB/s."""
_AT_ONCE: Final = 4
"""Files in memory, each as large as the operator lets one be."""
_MAX_REDIRECTS: Final = 3
_PIECE_BYTES: Final = 256 * 1024
_ELSEWHERE: Final = {
    "external": "it is kept by another service",
    "hidden_by_limit": "Slack hides it: the workspace is above its limit",
    "tombstone": "it was deleted",
    "email": "it is an e-mail, which Slack gives no app",
}
_NO_ACCESS: Final = "Slack does not let me read it"
_NO_SCOPE: Final = "I may not read files here: my operator must grant me files:read"


class SlackFiles:
    """Implements FileExchange."""

    def __init__(
        self, api: SlackApi, session: aiohttp.ClientSession, *, token: SecretStr, base_url: str
    ) -> None:
        """`base_url`: of the Web API; files are at its own host, and at `files.` of its domain."""
        self._api = api
        self._session = session
        self._token = token
        self._slots = asyncio.Semaphore(_AT_ONCE)
        home = urlsplit(base_url)
        self._origins = {(home.scheme, home.netloc), (home.scheme, f"files.{home.netloc}")}
        self._log = get_logger(__name__)

    async def fetch(self, file: AttachedFile, *, max_bytes: int) -> bytes:
        async with self._slots, _mapped_errors():
            # Source: Slack, file object, `check_file_info`, read 2026-11.
            if not (file.url and file.mode):
                file = await self._ask(file)
            data = await self._fetch(file, max_bytes)
            if file.size not in (None, len(data)):
                # It was changed meanwhile, or cut off: Slack knows which.
                file = await self._ask(file)
                if file.size != len(data):
                    data = await self._fetch(file, max_bytes)
            if file.size not in (None, len(data)):
                raise UnreadableFileError("it did not arrive whole")
            return data

    async def upload(self, name: str, data: bytes) -> str:
        """Raises: SlackLeaseLost, besides: its run is another process's by now."""
        await self._api.confirm()
        arguments = {"filename": name, "length": len(data)}
        async with self._slots, _mapped_errors():
            # Both of its arguments go into the address, as the SDK sends them. Source: slack-sdk 3.47, read 2026-11.
            place = await self._api.repeated("files.getUploadURLExternal", arguments, verb="GET")
            url, file_id = text_of(place, "upload_url"), text_of(place, "file_id")
            parts = urlsplit(url)
            if (parts.scheme, parts.netloc) not in self._origins or not file_id:
                raise UnreadableFileError("Slack takes it nowhere that I know")
            timeout = aiohttp.ClientTimeout(total=FETCH_TIMEOUT_S)
            async with self._session.post(url, data=data, timeout=timeout) as response:
                if response.status != HTTPStatus.OK:
                    may_pass = response.status >= HTTPStatus.INTERNAL_SERVER_ERROR
                    raise UnreadableFileError(f"Slack answers {response.status}", may_pass=may_pass)
            return file_id

    async def _ask(self, file: AttachedFile) -> AttachedFile:
        """Returns the file as Slack tells of it now."""
        try:
            response = await self._api.repeated("files.info", {"file": file.id}, verb="GET")
        except SlackRefusal as exc:
            if exc.word == "missing_scope":
                self._log.warning("slack.files_refused", error=exc.word)
                raise UnreadableFileError(_NO_SCOPE) from exc
            raise UnreadableFileError("Slack does not know it any more") from exc
        known = object_of(response, "file")
        size = known.get("size")
        return file.model_copy(
            update={
                "url": text_of(known, "url_private_download") or text_of(known, "url_private"),
                "media_type": text_of(known, "mimetype"),
                "mode": text_of(known, "mode"),
                "size": size if isinstance(size, int) else None,
            }
        )

    async def _fetch(self, file: AttachedFile, max_bytes: int) -> bytes:
        if file.mode in _ELSEWHERE:
            raise UnreadableFileError(_ELSEWHERE[file.mode])
        if file.size is not None and file.size > max_bytes:
            raise _too_large(max_bytes)
        url, reason = file.url, _NO_ACCESS
        for _ in range(_MAX_REDIRECTS):
            async with self._get(url) as response:
                if response.status == HTTPStatus.TOO_MANY_REQUESTS:
                    reason = f"Slack answers {response.status}"
                    await asyncio.sleep(asked_pause_s(response.headers))
                    continue
                if response.status in (301, 302, 303, 307, 308):
                    url = urljoin(url, response.headers.get("location", ""))
                    continue
                _check(response, file)
                return await _read(response, max_bytes)
        raise UnreadableFileError(reason)

    @asynccontextmanager
    async def _get(self, url: str) -> AsyncIterator[aiohttp.ClientResponse]:
        parts = urlsplit(url)
        if (parts.scheme, parts.netloc) not in self._origins:
            # Its login page, for one; whoever is there is not shown the token.
            raise UnreadableFileError(_NO_ACCESS)
        headers = {"authorization": f"Bearer {self._token.get_secret_value()}"}
        async with self._session.get(
            url,
            headers=headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=FETCH_TIMEOUT_S),
        ) as response:
            yield response


def _check(response: aiohttp.ClientResponse, file: AttachedFile) -> None:
    """Refuses what is not the file. Without access Slack answers 200 with its login page.

    Source: integrators' reports on url_private, read 2026-11.
    """
    if response.status != HTTPStatus.OK:
        raise UnreadableFileError(f"Slack answers {response.status}")
    length = response.content_length
    is_page = response.content_type == "text/html"
    if is_page and (file.media_type != "text/html" or length not in (None, file.size)):
        raise UnreadableFileError(_NO_ACCESS)


async def _read(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    data = bytearray()
    async for piece in response.content.iter_chunked(_PIECE_BYTES):
        data += piece
        if len(data) > max_bytes:
            raise _too_large(max_bytes)
    return bytes(data)


def _too_large(max_bytes: int) -> UnreadableFileError:
    return UnreadableFileError(f"it is larger than the {max_bytes / 1024**2:.4g} MiB that I take")


@asynccontextmanager
async def _mapped_errors() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(FETCH_TIMEOUT_S):
            yield
    except TimeoutError as exc:
        raise UnreadableFileError("Slack took too long over it", may_pass=True) from exc
    except SlackRefusal as exc:
        raise UnreadableFileError(f"Slack refuses it: {exc.word}") from exc
    except (aiohttp.ClientError, SlackFault, OSError, ValueError) as exc:
        raise UnreadableFileError("Slack could not be reached for it", may_pass=True) from exc

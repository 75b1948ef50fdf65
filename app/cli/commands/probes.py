"""Tries of what is outside, for `orion doctor`: each uses it as the service would, in its cheapest way, and leaves nothing behind but a trace."""

import asyncio
import hashlib
import hmac
import json
import os
import platform
import resource
import secrets
import shutil
import statistics
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
from pydantic import SecretStr

from agent_scripts.adapter import ModelProtocol
from app import __version__
from app.compose.models import ModelSource, key_headers
from app.settings.settings import Settings

HTTP_TIMEOUT_S: Final = 5.0
READ_BACK_TIMES, READ_AGAIN_S = 12, 0.5
"""Langfuse shows what it has taken after a while."""
MAX_PAGES: Final = 5
"""Of a trace, each of 1,000 observations."""
SYNCS: Final = 9
_MODELS: Final[Mapping[ModelProtocol, str]] = {
    ModelProtocol.ANTHROPIC: "/v1/models",
    ModelProtocol.OPENAI: "/v1/models",
    ModelProtocol.GEMINI: "/v1beta/models",
}
"""Lists models, and with an id behind it shows one, which costs nothing. Source: the vendors' API references, "List models" and "Get a model", read 2026-11."""
_ALL: Final[Mapping[ModelProtocol, str]] = {
    ModelProtocol.ANTHROPIC: "?limit=1000",
    ModelProtocol.OPENAI: "",
    ModelProtocol.GEMINI: "?pageSize=1000",
}
"""As many as a vendor lists at once."""


class TryError(Exception):
    """It does not work; the message says what came back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """How a directory's disk is."""

    free_bytes: int
    sync_s: float
    """A write of 4 KiB that is on the disk when it returns: the median of some."""


def measure_disk(directory: Path) -> Disk:
    """Writes into a directory, and removes what it wrote. Raises: OSError."""
    took = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(SYNCS):
            began_s = time.perf_counter()
            file.write(b"\0" * 4096)
            file.flush()
            os.fsync(file.fileno())
            took.append(time.perf_counter() - began_s)
    return Disk(free_bytes=shutil.disk_usage(directory).free, sync_s=statistics.median(took))


def describe_machine() -> str:
    """Returns what this process runs on, and what it may have."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return (
        f"Orion {__version__}, Python {platform.python_version()}, {platform.system()} {platform.release()}; "
        f"{os.cpu_count()} processors, {memory >> 30} GiB, {files} open files"
    )


async def try_model(
    protocol: ModelProtocol, source: ModelSource, *, models: Collection[str]
) -> str:
    """Lists a vendor's models with the key, and asks for each of `models`, by their ids, that is not among them: it may be an alias.

    Raises:
        TryError: the key is not taken, nobody answers, or one of them is not there.
    """
    if source.is_gateway:
        return f"{source.base_url}: not tried, it lists models for anybody"
    url = source.base_url.rstrip("/") + _MODELS[protocol]
    headers = dict(key_headers(protocol, source))
    if protocol is ModelProtocol.ANTHROPIC:
        headers["anthropic-version"] = "2023-06-01"
    answer = await _ask("GET", url + _ALL[protocol], headers=headers)
    refusals = {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}
    if protocol is ModelProtocol.GEMINI:  # Source: Gemini API, "API_KEY_INVALID", read 2026-11.
        refusals.add(httpx.codes.BAD_REQUEST)
    if answer.status_code in refusals:
        raise TryError(f"{source.base_url} does not take the key (HTTP {answer.status_code})")
    if not answer.is_success:
        return f"{source.base_url}: answers, and does not list models (HTTP {answer.status_code})"
    listed = _ids_of(answer)
    for model in sorted(set(models) - listed) if listed else ():
        asked = await _ask("GET", f"{url}/{quote(model, safe='')}", headers=headers)
        if asked.status_code == httpx.codes.NOT_FOUND:
            raise TryError(f"{source.base_url} takes the key, and has no model {model!r}")
    return f"{source.base_url}: the key is taken"


def _ids_of(answer: httpx.Response) -> set[str]:
    """Returns what a list of models names: `data` with ids, or Google's `models` with names behind `models/`."""
    told = _json_of(answer)
    rows = [
        row for name in ("data", "models") for row in told.get(name) or () if isinstance(row, dict)
    ]
    return {str(row.get("id") or row.get("name")).removeprefix("models/") for row in rows}


async def try_app_token(settings: Settings) -> str:
    """Asks Slack for a socket, and opens none: an open one would be sent events. Raises: TryError."""
    await call_slack(settings, "apps.connections.open", settings.slack.app_token)
    return "Slack gives sockets for SLACK_APP_TOKEN"


async def export_manifest(settings: Settings) -> Mapping[str, Any]:
    """Returns the manifest that the app of the bot token has. Raises: TryError.

    Source: Slack Web API, bots.info and apps.manifest.export, read 2026-11.
    """
    slack = settings.slack
    bot, config = slack.bot_token, slack.config_token
    bot_id = (await call_slack(settings, "auth.test", bot)).get("bot_id")
    asked = await call_slack(settings, "bots.info", bot, bot=bot_id)
    app_id = dict(asked.get("bot") or {}).get("app_id")
    told = await call_slack(settings, "apps.manifest.export", config, app_id=app_id)
    found = told.get("manifest")
    if not isinstance(found, dict):
        raise TryError("apps.manifest.export: it has no manifest")
    return found


async def call_slack(
    settings: Settings, method: str, token: SecretStr | None, **arguments: object
) -> Mapping[str, Any]:
    """Returns what a method of Slack's answers. Raises: TryError: it refuses, or nobody answers."""
    headers = {"authorization": f"Bearer {token.get_secret_value() if token else ''}"}
    answer = await _ask(
        "POST", f"{settings.slack.api_url}{method}", headers=headers, data=arguments
    )
    told = _json_of(answer)
    if not told.get("ok"):
        raise TryError(f"{method}: {told.get('error') or answer.status_code}")
    return told


async def try_public_url(settings: Settings) -> str:
    """Delivers to the public address what Slack sends to verify it, signed as Slack does. Raises: TryError."""
    url = f"{(settings.service.public_url or '').rstrip('/')}/slack/events"
    secret = settings.slack.signing_secret
    challenge, now = secrets.token_hex(16), str(int(time.time()))
    body = json.dumps({"type": "url_verification", "token": "doctor", "challenge": challenge})
    base = f"v0:{now}:{body}".encode()
    key = (secret.get_secret_value() if secret else "").encode()
    signature = hmac.new(key, base, hashlib.sha256).hexdigest()
    headers = {
        "content-type": "application/json",
        "x-slack-request-timestamp": now,
        "x-slack-signature": f"v0={signature}",
    }
    answer = await _ask("POST", url, headers=headers, content=body)
    if not answer.is_success or challenge not in answer.text:
        raise TryError(f"{url} answers a signed delivery with HTTP {answer.status_code}")
    return f"{url} takes what Slack signs"


async def try_address(settings: Settings) -> str:
    """Asks the public address whether Orion is there, as what runs in a cloud's sandbox will. Raises: TryError."""
    url = f"{(settings.service.public_url or '').rstrip('/')}/healthz"
    answer = await _ask("GET", url)
    if not answer.is_success or answer.text != "ok":
        raise TryError(f"{url} answers with HTTP {answer.status_code}, and not as Orion does")
    return f"{url} is Orion's"


async def clock_skew_s(settings: Settings) -> float:
    """Returns by how many seconds this machine's clock is ahead of Slack's, which tells its own to the second. Raises: TryError."""
    answer = await _ask("POST", f"{settings.slack.api_url}api.test")
    try:
        told = parsedate_to_datetime(answer.headers["date"]).replace(tzinfo=UTC)
    except (KeyError, ValueError) as exc:
        raise TryError("Slack does not say what time it is") from exc
    return (datetime.now(UTC) - told).total_seconds()


async def try_langfuse(settings: Settings) -> str:
    """Sends a trace named `doctor` and reads it back. Raises: TryError."""
    base = settings.langfuse.base_url.rstrip("/")
    public_key, secret = settings.langfuse.public_key or "", settings.langfuse.secret_key
    auth = (public_key, secret.get_secret_value() if secret else "")
    trace_id, began_s = secrets.token_bytes(16), time.perf_counter()
    # Source: Langfuse, OpenTelemetry endpoint, and what langfuse 5.0.4 sends to it, read 2026-11.
    headers = {
        "content-type": "application/x-protobuf",
        "x-langfuse-ingestion-version": "4",
        "x-langfuse-public-key": public_key,
        "x-langfuse-sdk-name": "python",
    }
    url = f"{base}/api/public/otel/v1/traces"
    answer = await _ask(
        "POST", url, auth=auth, headers=headers, content=_export_of(trace_id, public_key)
    )
    if not answer.is_success:
        raise TryError(f"{base} does not take a trace (HTTP {answer.status_code})")
    for _ in range(READ_BACK_TIMES):
        if await list_observations(settings, trace_id.hex()):
            took_s = time.perf_counter() - began_s
            return f"{base}: a trace was sent, and read back after {took_s:.1f} s"
        await asyncio.sleep(READ_AGAIN_S)
    return f"! {base} takes a trace, and has not shown it within some seconds"


async def list_observations(settings: Settings, trace_id: str) -> Sequence[str]:
    """Returns the names of the observations that Langfuse shows of a trace, 5,000 at the most. Raises: TryError."""
    base, secret = settings.langfuse.base_url.rstrip("/"), settings.langfuse.secret_key
    auth = (settings.langfuse.public_key or "", secret.get_secret_value() if secret else "")
    query = {"traceId": trace_id, "fields": "core,basic", "limit": "1000"}
    names: list[str] = []
    for _ in range(MAX_PAGES):
        # Source: Langfuse API reference, "Get observations (v2)", read 2026-11.
        answer = await _ask("GET", f"{base}/api/public/v2/observations", auth=auth, params=query)
        if not answer.is_success:
            raise TryError(f"{base} does not show traces (HTTP {answer.status_code})")
        said = _json_of(answer)
        found, meta = said.get("data"), said.get("meta")
        names += [str(one.get("name")) for one in found] if isinstance(found, list) else []
        cursor = meta.get("cursor") if isinstance(meta, dict) else None
        if not cursor:
            break
        query["cursor"] = str(cursor)
    return names


def _export_of(trace_id: bytes, public_key: str) -> bytes:
    """Returns a trace of one observation, as OpenTelemetry sends it."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
        ExportTraceServiceRequest,
    )

    export = ExportTraceServiceRequest()
    scope = export.resource_spans.add().scope_spans.add()
    scope.scope.name = "langfuse-sdk"
    scope.scope.attributes.add(key="public_key").value.string_value = public_key
    span = scope.spans.add(trace_id=trace_id, span_id=secrets.token_bytes(8), name="doctor")
    span.start_time_unix_nano = span.end_time_unix_nano = time.time_ns()
    for key, value in (
        ("langfuse.trace.name", "doctor"),
        ("langfuse.observation.type", "span"),
    ):
        span.attributes.add(key=key).value.string_value = value
    return bytes(export.SerializeToString())


async def _ask(
    method: str,
    url: str,
    **arguments: Any,  # noqa: ANN401 - httpx's
) -> httpx.Response:
    try:
        async with httpx.AsyncClient(timeout=HTTP_TIMEOUT_S) as http:
            return await http.request(method, url, **arguments)
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        raise TryError(f"{url.partition('?')[0]}: {type(exc).__name__}") from exc


def _json_of(answer: httpx.Response) -> Mapping[str, Any]:
    try:
        told = answer.json()
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}

"""Opening the WebSocket to a sandbox: a new one, or one that runs."""

import asyncio
import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from websockets.asyncio.client import ClientConnection, connect

from sandbox_runtime.providers.deno.errors import UnexpectedAnswer
from sandbox_runtime.providers.deno.rpc import MAX_FRAME_BYTES, RpcConnection
from sandbox_runtime.providers.deno.settings import DenoSettings

CREATE_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 20.0
_ID = "x-deno-sandbox-id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A value that the network puts in place of a text that only the sandbox sees, in requests to one host."""

    host: str
    value: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    """What to boot."""

    region: str
    root: str
    """Slug of a snapshot, whose files nobody changes, or of a volume."""
    volumes: Mapping[str, str]
    """Path to slug."""
    memory_mib: int
    stop_at_ms: int
    """Since 1970."""
    labels: Mapping[str, str]
    allow_net: Sequence[str] | None
    """Hosts, with or without a port, `*.` before them for all below; empty = none. None = not said, which is all: the
    builds in Deno's documentation install packages that way (its pages disagree about it; read 2026-11)."""
    secrets: Mapping[str, Secret] = field(default_factory=dict, repr=False)
    """By the variable that holds the text inside."""

    def encode(self) -> str:
        """Source: @deno/sandbox 0.13.2, sandbox.js, create; deno-sandbox 0.16.0, sandbox.py, AppConfig."""
        config: dict[str, object] = {
            "region": self.region,
            "memory_mb": self.memory_mib,
            "stop_at_ms": self.stop_at_ms,
            "labels": dict(self.labels),
            "root": {"volume": self.root},
            "volumes": [{"volume": slug, "path": path} for path, slug in self.volumes.items()],
            "secrets": {
                name: {"hosts": [secret.host], "value": secret.value}
                for name, secret in self.secrets.items()
            },
        }
        if self.allow_net is not None:
            config["allow_net"] = list(self.allow_net)
        return base64.b64encode(json.dumps(config).encode()).decode("ascii")


class Connector:
    """Of one endpoint."""

    def __init__(self, settings: DenoSettings) -> None:
        self._url = settings.sandbox_url.replace("http", "ws", 1)
        self._token = settings.token
        self._silence_s = settings.silence_s

    async def create(self, config: SandboxConfig) -> tuple[str, RpcConnection]:
        """A new sandbox's id and the connection to it.

        Raises:
            websockets.WebSocketException, OSError, TimeoutError, UnexpectedAnswer: it may exist all the same.
        """
        connection = await self._open(
            "/api/v3/sandboxes/create",
            {"x-deno-sandbox-config": config.encode()},
            timeout_s=CREATE_TIMEOUT_S,
        )
        found = connection.response.headers.get(_ID) if connection.response is not None else None
        if not found:
            await connection.close()
            raise UnexpectedAnswer("a sandbox without an id")
        return found, RpcConnection(connection)

    async def connect(self, sandbox_id: str) -> RpcConnection:
        """To one that runs.

        Raises:
            websockets.WebSocketException, OSError, TimeoutError.
        """
        path = f"/api/v3/sandbox/{sandbox_id}/connect"
        return RpcConnection(await self._open(path, {}, timeout_s=CONNECT_TIMEOUT_S))

    async def _open(
        self, path: str, headers: Mapping[str, str], *, timeout_s: float
    ) -> ClientConnection:
        async with asyncio.timeout(timeout_s):
            return await connect(
                self._url + path,
                additional_headers={"Authorization": f"Bearer {self._token}", **headers},
                max_size=MAX_FRAME_BYTES,
                open_timeout=timeout_s,
                ping_interval=self._silence_s / 2,
                ping_timeout=self._silence_s / 2,
                close_timeout=2.0,
                compression=None,  # base64 of output: it would cost more than it saves
            )

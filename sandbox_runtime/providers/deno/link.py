"""The connection to one sandbox, made again when it broke."""

import asyncio

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.providers.deno.connecting import CONNECT_TIMEOUT_S, Connector
from sandbox_runtime.providers.deno.errors import asking
from sandbox_runtime.providers.deno.rpc import RpcConnection
from sandbox_runtime.task_group import TaskGroup


class Link:
    """Whoever makes it closes it."""

    def __init__(self, connector: Connector, group: TaskGroup, sandbox_id: str) -> None:
        """`group` runs what reads the connections, until they are closed."""
        self._connector = connector
        self._group = group
        self._sandbox_id = sandbox_id
        self._connection: RpcConnection | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    def use(self, connection: RpcConnection) -> None:
        """Take over the one that the sandbox was made by."""
        self._connection = connection
        self._group.create_task(connection.run())

    async def connection(self) -> RpcConnection:
        """One that is open, as far as anybody knows.

        Raises:
            SandboxError: UNAVAILABLE; retryable unless the sandbox is gone.
        """
        async with self._connecting:
            if self._closed:
                raise SandboxError(
                    SandboxErrorCode.UNAVAILABLE, f"sandbox {self._sandbox_id} was left"
                )
            if self._connection is None or not self._connection.is_open:
                async with asking(
                    f"sandbox {self._sandbox_id} is gone",
                    timeout_s=CONNECT_TIMEOUT_S,
                    missing=SandboxErrorCode.UNAVAILABLE,
                ):
                    self.use(await self._connector.connect(self._sandbox_id))
            assert self._connection is not None  # noqa: S101  # set above
            return self._connection

    async def close(self) -> None:
        """Disconnect; the sandbox goes on. Idempotent."""
        self._closed = True
        if self._connection is not None:
            await self._connection.close()

"""How an answer from outside passes through: waited for as long as the client waits, as it comes, and cut where it was cut."""

from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from app.log import get_logger
from sandbox_runtime.task_group import open_task_group

T = TypeVar("T")

_log = get_logger(__name__)


class StreamCutError(Exception):
    """The answer broke off after its status line had been passed on."""


async def while_waited_for(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client hangs up. The request's body must have been read.

    Raises:
        ClientDisconnect: the client hung up first.
        Exception: of `work`, as it is.
    """
    answers: list[T] = []

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        raise ClientDisconnect

    async def run() -> None:
        answers.append(await work)
        watching.cancel()

    try:
        async with open_task_group() as group:
            watching = group.create_task(watch())
            group.create_task(run())
    except BaseExceptionGroup as failures:
        if not answers:  # who hung up in the moment of the answer is noticed when that is passed on
            raise failures.exceptions[0] from failures.exceptions[0].__cause__
    return answers[0]


class PassedThrough(StreamingResponse):
    """Breaks off where the answer did: the agent must see a cut stream, as it would without us."""

    def __init__(
        self,
        content: AsyncIterator[bytes],
        *,
        status_code: int,
        headers: Mapping[str, str],
        held: AsyncExitStack,
    ) -> None:
        """`held`: closed before the client sees the end of the answer, or when it waits for it no more."""
        super().__init__(_closing(held, content), status_code=status_code, headers=headers)
        self._held = held

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except StreamCutError:
            # Uvicorn closes the connection of a response without an end, and says so in one line.
            _log.warning("broker.stream_cut", path=scope["path"])
        finally:
            # Again: the content of a client that hung up stays where it waits, or was never begun.
            await self._held.aclose()


async def _closing(held: AsyncExitStack, content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async with held:
        async for chunk in content:
            yield chunk

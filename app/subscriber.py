"""The function that works on Vercel: called for each message of the queue, does a slice of a run, and has the next message sent."""

from collections.abc import AsyncIterable

from vercel.queue import subscribe

from app.compose.adapters import Overrides, Role
from app.dispatch.slices import SliceDispatcher
from app.dispatch.vercel_queue import MAX_BODY_BYTES, TOPIC, message_key, read_wake_up
from app.log import get_logger
from app.main import SLICE_S, STAND_IN, open_invocation
from app.runs.request import RunId
from app.settings.settings import load_settings

_log = get_logger(__name__)


@subscribe(topic=TOPIC)
async def advance(body: AsyncIterable[bytes]) -> None:
    """Works for a message; returns, and so acknowledges it, also when it is none of ours: to be sent again would change nothing.

    Raises:
        Exception: whatever kept it from working; the message is delivered again.
    """
    settings = load_settings(given=STAND_IN)
    secret = settings.slack.signing_secret
    try:
        message = read_wake_up(
            await _read(body),
            key=message_key(secret.get_secret_value() if secret else ""),
            deployment=settings.service.deployment,
        )
    except ValueError as exc:
        _log.warning("queue.refused", reason=str(exc))
        return
    async with open_invocation(load_settings, Overrides(), role=Role.SLICE) as service:
        if not isinstance(service.dispatcher, SliceDispatcher):
            raise TypeError(f"not a dispatcher of slices: {service.dispatcher!r}")
        slice_s = settings.limits.slice_s or SLICE_S
        await service.dispatcher.work(RunId(message.run_id), number=message.number, slice_s=slice_s)
        await service.dispatcher.sweep()


async def _read(body: AsyncIterable[bytes]) -> bytes:
    """Returns the body, or of one that is too long its beginning."""
    read = bytearray()
    async for chunk in body:
        read += chunk
        if len(read) > MAX_BODY_BYTES:
            break
    return bytes(read)

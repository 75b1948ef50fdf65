"""The function that works on Vercel: called for each message of the queue."""

from collections.abc import AsyncIterable

from vercel.queue import RetryAfter, subscribe

from app.dispatch.vercel_queue import TOPIC
from app.log import get_logger
from app.main import work_for_message
from app.store.engine import UnreadableStoreError

AGAIN_AFTER_S = 60
"""As after an error; the run's other messages may come sooner."""

_log = get_logger(__name__)


@subscribe(topic=TOPIC)
async def advance(body: AsyncIterable[bytes]) -> None:
    """Does a slice of a run, and has the next messages sent; returns, and so acknowledges this one.

    Raises:
        RetryAfter: the database is away; the message is delivered again.
        Exception: as `work_for_message`.
    """
    try:
        await work_for_message(body)
    except UnreadableStoreError as exc:
        _log.error("queue.put_off", reason=str(exc), again_after_s=AGAIN_AFTER_S)
        raise RetryAfter(AGAIN_AFTER_S) from None

"""Vercel's functions with a tripwire around every port; a build's own files lead here instead of to `app`, see `watch`."""

from collections.abc import AsyncIterable
from pathlib import Path

from vercel.queue import subscribe

from app.compose.adapters import Overrides
from app.dispatch.vercel_queue import TOPIC
from app.main import create_function_app, work_for_message
from tests.crash.agent import SmallAdapter
from tests.crash.points import Mailbox, Tripwire, WatchAll

MAILBOX = Path("/var/mailbox")
"""Where the harness puts it."""

_overrides = Overrides(adapter=SmallAdapter(), wrap=WatchAll(Tripwire(Mailbox(MAILBOX))))
app = create_function_app(overrides=_overrides)


@subscribe(topic=TOPIC, consumer_group="app.subscriber.advance")  # as its trigger names it
async def advance(body: AsyncIterable[bytes]) -> None:
    await work_for_message(body, overrides=_overrides)

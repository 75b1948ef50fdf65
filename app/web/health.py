"""Whether this process can do its work, part by part."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from app.runs.ports import Clock

CHECK_TIMEOUT_S = 5.0
OUTSIDE_CACHE = timedelta(seconds=30)
"""A load balancer asks every second; Slack and the provider must not notice."""

Probe = Callable[[], Awaitable[str]]
"""Returns a line for people; raises when the part does not work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    is_ok: bool
    detail: str


class Health:
    """Asks the parts. `inside` probes run every time, `outside` ones at most every 30 s."""

    def __init__(
        self, *, inside: Mapping[str, Probe], outside: Mapping[str, Probe], clock: Clock
    ) -> None:
        self._inside = inside
        self._outside = outside
        self._clock = clock
        self._cache: dict[str, tuple[datetime, Check]] = {}
        self.is_draining = False

    async def check(self) -> Mapping[str, Check]:
        checks = {name: await _ask(probe) for name, probe in self._inside.items()}
        for name, probe in self._outside.items():
            asked_at, cached = self._cache.get(name, (None, None))
            if cached is None or asked_at is None or self._clock.now() - asked_at > OUTSIDE_CACHE:
                cached = await _ask(probe)
                self._cache[name] = (self._clock.now(), cached)
            checks[name] = cached
        if self.is_draining:
            checks["service"] = Check(is_ok=False, detail="draining")
        return checks


async def _ask(probe: Probe) -> Check:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return Check(is_ok=True, detail=await probe())
    except TimeoutError:
        return Check(is_ok=False, detail=f"no answer within {CHECK_TIMEOUT_S:g} s")
    except Exception as exc:  # noqa: BLE001 - whatever a part's failure is, its name and words are the answer
        return Check(is_ok=False, detail=f"{type(exc).__name__}: {exc}")

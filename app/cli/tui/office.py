"""What the terminal's screens show and do: the records by the operators' desk, sandboxes by their providers, deeds by the commands that there are."""

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from app.cli.commands.runs import open_records, retry_run, stop_run
from app.cli.commands.sandboxes import as_row, list_sandboxes
from app.compose.models import missing_for_agent
from app.compose.policy import run_policy
from app.errors import ErrorCode
from app.operators.desk import Desk
from app.redaction import Masker
from app.runs.model import RunState, SystemClock
from app.runs.request import RunId
from app.settings.settings import Settings, host_environment
from app.store.runs import RunQuery
from sandbox_runtime.errors import SandboxError
from sandbox_runtime.registry import load_provider, provider_names, provider_spec, provider_specs

if TYPE_CHECKING:
    from app.cli.commands.setup import Ask as AskPerson
    from app.cli.commands.terminal import Print

SHOWN_RUNS: Final = 200
SHOWN_SANDBOXES: Final = 200
"""Of threads that have none now; `orion sandboxes list` has them all."""
REMEMBERED_CHARS: Final = 4_000
"""Logs are longer, and looked at one by one."""
LACKING: Final = "-"
"""Stands where a provider has no such figure."""
ASK_TIMEOUT_S: Final = 3600.0
END_TIMEOUT_S: Final = 15.0
"""For a command that was told to end, whose sandbox ends with it; then it is killed."""


class FilterError(ValueError):
    """Words that filter nothing; the message says which, and what there is."""


def read_filter(text: str) -> RunQuery:
    """Returns the runs that words such as `state=failed user=U1 agent=claude provider=docker code=AGENT_IDLE` mean. Raises: FilterError."""
    query = RunQuery(limit=SHOWN_RUNS)
    for word in text.split():
        name, mark, value = word.partition("=")
        if not mark or name not in ("state", "user", "agent", "provider", "code"):
            raise FilterError(f"{word!r}: write state=, user=, agent=, provider= or code=")
        kinds: Mapping[str, Any] = {"state": RunState, "code": ErrorCode}
        try:
            query = replace(query, **{name: kinds.get(name, str)(value)})
        except ValueError:
            raise FilterError(f"{name}={value}: there are {', '.join(kinds[name])}") from None
    return query


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a question asked from the terminal runs."""

    provider: str
    missing: str
    """What it lacks to be used; empty = nothing that is known."""


class Office:
    """Made by `open_office`."""

    def __init__(self, settings: Settings, desk: Desk) -> None:
        self.settings = settings
        self._desk = desk
        self._processor_times: Mapping[str, tuple[float, float]] = {}
        """Of each sandbox: when it was looked at, and the seconds that it had used."""

    async def runs(self, query: RunQuery) -> Sequence[Mapping[str, Any]]:
        return list((await self._desk.runs(query))["runs"])

    async def run(self, run_id: str) -> Mapping[str, Any] | None:
        return await self._desk.run(RunId(run_id))

    async def follow(self, run_id: str, *, write: "Print") -> None:
        """Writes what a run's agent prints until its end. Raises: SandboxCommandError: it has left no log, or is gone."""
        from app.cli.commands.logs import follow_run

        await follow_run(self.settings, run_id, write=write)

    async def living(self) -> int:
        """Returns how many processes of this Orion live."""
        return len((await self._desk.processes())["processes"])

    async def going_and_waiting(self) -> tuple[int, int]:
        return await self._desk.going_and_waiting()

    async def sandboxes(self) -> Sequence[Mapping[str, Any]]:
        """Returns those of all providers that can be asked, and threads without one, the latest used, with `cpu_percent` of one processor since the look before, None at the first. Raises: OSError."""
        await asyncio.to_thread(self._load_clients)
        rows = [as_row(one) for one in await list_sandboxes(self.settings, limit=SHOWN_SANDBOXES)]
        seen, now = self._processor_times, time.monotonic()
        self._processor_times = {
            str(row["id"]): (now, cpu_s) for row in rows if isinstance(cpu_s := row["cpu_s"], float)
        }
        return [{**row, "cpu_percent": self._percent(str(row["id"]), seen)} for row in rows]

    def _load_clients(self) -> None:
        """Imports what providers need: in a thread, as no key would be heard for a third of a second."""
        for spec in provider_specs():
            if self.settings.sandbox.is_set_up(spec):
                with suppress(SandboxError):  # not installed: told where it is used
                    load_provider(spec.name)

    def _percent(self, name: str, seen: Mapping[str, tuple[float, float]]) -> float | None:
        if name not in seen or name not in self._processor_times:
            return None
        (before, used_before), (now, used) = seen[name], self._processor_times[name]
        # Of a sandbox whose processes ended meanwhile less is counted than before.
        return max(0.0, used - used_before) / max(now - before, 0.001) * 100

    async def stop(self, run_id: str) -> str:
        is_asked = await stop_run(self.settings, run_id)
        return "asked to stop" if is_asked else "it is over, or was asked to stop already"

    async def retry(self, run_id: str) -> str:
        return f"asked again: {await retry_run(self.settings, run_id)}"

    def places(self) -> Sequence[Place]:
        """Returns the providers, the one that would be chosen first, with what each lacks."""
        chosen = self.settings.sandbox.provider
        names = sorted(provider_names(), key=lambda name: (name != chosen, name))
        return [Place(provider=name, missing=self._missing(name)) for name in names]

    def _missing(self, name: str) -> str:
        is_set_up = self.settings.sandbox.is_set_up(provider_spec(name))
        return "" if is_set_up else f"no credentials: orion setup {name}"

    def missing_model(self) -> str:
        return missing_for_agent(self.settings, self.settings.agents.default) or ""

    async def ask(self, text: str, *, provider: str) -> AsyncIterator[str]:
        """Runs a question without Slack; yields what `orion ask` prints, line by line."""
        async for line in command_lines("ask", "--sandbox", provider, "--", text):
            yield line

    def clouds(self) -> Sequence[str]:
        """Returns the providers that `orion setup` knows."""
        from app.cli.commands.setup import QUESTIONS

        return list(QUESTIONS)

    async def set_up(self, provider: str, *, ask: "AskPerson", say: "Print") -> bool:
        """Does what `orion setup` does, and says the states that it reaches; whether it is ready. Raises: SettingsError."""
        from app.cli.commands.setup import set_up

        return await set_up(provider, ask=ask, say=say)


async def command_lines(*arguments: str) -> AsyncIterator[str]:
    """Yields what an `orion` command prints. It ends when nobody listens any more."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "app.cli", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=host_environment(),
    )
    try:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        async with asyncio.timeout(ASK_TIMEOUT_S):
            while line := await process.stdout.readline():
                yield line.decode(errors="replace").rstrip("\n")
            await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(END_TIMEOUT_S):
                    await process.wait()
            except TimeoutError:
                process.kill()


@asynccontextmanager
async def open_office(settings: Settings) -> AsyncIterator[Office]:
    """Opens the records. Raises: OSError: no Orion has run with them; UnreadableStoreError."""
    mask = _remembering(Masker(settings.secrets).mask)
    async with open_records(settings) as store:
        desk = Desk(
            store,
            policy=run_policy(settings),
            pools=list,
            mask=mask,
            trace_link=lambda _trace_id: "",
            clock=SystemClock(),
        )
        yield Office(settings, desk)


def _remembering(mask: Callable[[str], str]) -> Callable[[str], str]:
    """Returns the same that knows questions which it has masked before: the two hundred on the screen are read every two seconds."""
    known = lru_cache(maxsize=2 * SHOWN_RUNS)(mask)
    return lambda text: known(text) if len(text) <= REMEMBERED_CHARS else mask(text)


def plain(text: object) -> str:
    """Returns text that can harm no terminal: without control characters, in one line."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]+", " ", str(text))

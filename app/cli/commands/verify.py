"""One real run in the chosen sandbox, without Slack: to see what works here and how long each step takes, or for its answer."""

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from pydantic import SecretStr
from typing_extensions import override

from agent_scripts.events import TurnFinished
from agent_scripts.registry import agent_spec
from app.cli.commands.terminal import Print
from app.compose.brokers import create_direct_broker, open_visiting_broker
from app.compose.factories import create_runner, start_logging
from app.compose.models import asks_by_itself, describe_agent, missing_for_agent, needs_own_key
from app.compose.policy import run_policy
from app.compose.providers import choose_provider, create_provider, with_namespace
from app.errors import ErrorCode, OrionError
from app.redaction import Masker
from app.runs.attempt import Attempt
from app.runs.history import Conversation
from app.runs.model import ModelCall, Progress, Run
from app.runs.ports import StepKind, TraceStep
from app.runs.progress import Display, ProgressTracker
from app.runs.request import RunRequest, Surface, run_id_for
from app.runs.sandboxes import SessionLocks
from app.runs.stop import AttemptTime, StopRequest
from app.runs.workspace import Workspaces
from app.settings.settings import Settings
from app.store.memory import MemoryRunStore
from app.tracing.null import NullRunTrace
from app.web.hosting import serve
from sandbox_runtime.errors import SandboxError
from sandbox_runtime.types import Capability, SnapshotId


class ReportedStep:
    def __init__(self, name: str, write: Print) -> None:
        self._name = name
        self._write = write
        self._started = time.perf_counter()
        self._facts: list[str] = []
        self._failure = ""

    def set(self, **metadata: str | float | bool) -> None:
        self._facts += [f"{name}={value}" for name, value in metadata.items()]

    def fail(self, code: str, detail: str) -> None:
        self._failure = f"{code}: {detail}"

    def attempt(self, *, number: int, started_at: datetime, ended_at: datetime, error: str) -> None:
        if error:
            seconds = (ended_at - started_at).total_seconds()
            self._write(f"  attempt {number} failed after {seconds:.2f} s: {error}")

    def tool(
        self, *, name: str, argument: str, started_at: datetime, ended_at: datetime, is_error: bool
    ) -> None:
        seconds = (ended_at - started_at).total_seconds()
        self._write(
            f"  tool {name}: {argument[:80]} ({seconds:.2f} s{', failed' if is_error else ''})"
        )

    def generation(self, call: ModelCall) -> None:
        seconds = (call.ended_at - call.started_at).total_seconds()
        tokens = f"{call.usage.input_tokens} in, {call.usage.output_tokens} out"
        self._write(f"  model {call.model}: HTTP {call.status}, {tokens} ({seconds:.2f} s)")

    def pause(self) -> None:
        raise NotImplementedError("a verification has no slices")

    def end(self) -> None:
        seconds = time.perf_counter() - self._started
        mark = "FAIL" if self._failure else "ok"
        self._write(
            f"{mark:4} {self._name:20} {seconds:7.3f} s  {self._failure or ' '.join(self._facts)}"
        )


class ReportedTrace(NullRunTrace):
    """A `RunTrace` that prints its steps."""

    def __init__(self, write: Print) -> None:
        self._write = write

    @override
    @contextmanager
    def step(
        self,
        name: str,
        kind: StepKind = StepKind.SPAN,
        *,
        key: str = "",
        started_at: datetime | None = None,
    ) -> Iterator[TraceStep]:
        step = ReportedStep(name, self._write)
        try:
            yield step
        except Exception as exc:  # told, and raised again: a cancellation is no failure
            step.fail(type(exc).__name__, str(exc))
            raise
        finally:
            step.end()


class SilentReply:
    """Nobody watches a verification's progress."""

    def show(self, progress: Progress) -> None: ...


PROMPT = (
    "Run `echo orion-verify` in your shell and tell me what it printed.\nrun: echo orion-verify"
)
EXPECTED = "orion-verify"
OFFLINE_KEYS = {
    "anthropic": "offline-model-key",
    "openai": "sk-offline-model-key",
    "gemini": "AIza-offline-model-key",
}


async def verify(settings: Settings, *, write: Print) -> bool:
    """Runs it and prints each step; True when the agent answered with the tool's output."""

    def is_right(attempt: Attempt, text: str) -> bool:
        write(f"answer: {text[:200]!r}")
        is_well = EXPECTED in text and attempt.tracker.steps > 0
        told = "ok   the agent used its shell and answered"
        write(told if is_well else "FAIL the answer lacks the tool's output")
        return is_well

    return await _answer(settings, PROMPT, judge=is_right, write=write)


async def ask(settings: Settings, text: str, *, write: Print) -> bool:
    """Runs a question in the sandbox, prints each step and the answer; True when there is one. Nothing is kept of it."""

    def show(_attempt: Attempt, answer: str) -> bool:
        write("")
        write(answer)
        return True

    return await _answer(settings, text, judge=show, write=write)


Judge = Callable[[Attempt, str], bool]
"""Told how the agent has answered; whether that is well."""


async def _answer(settings: Settings, text: str, *, judge: Judge, write: Print) -> bool:
    masker = start_logging(settings, level="ERROR")
    agent = settings.agents.default
    if asks_by_itself(agent) and (missing := missing_for_agent(settings, agent)):
        write(f"FAIL {missing}")
        return False
    try:
        async with open_model(settings, write) as answering:
            attempt, finished = await _run(
                answering, text, masker, write, has_key=_has_key(settings)
            )
    except (OrionError, SandboxError) as exc:
        write(f"FAIL {exc.code}: {masker.mask(str(exc))}")
        return False
    if finished.error is not None:
        write(f"FAIL {finished.error}: {masker.mask(finished.detail)[-500:]}")
        return False
    if attempt.difference is not None:
        write(f"changes:\n{masker.mask(attempt.difference.patch)}")
    return judge(attempt, masker.mask(finished.text))


@asynccontextmanager
async def open_model(settings: Settings, write: Print) -> AsyncIterator[Settings]:
    """Yields the settings with a model that answers: the real one where there is a key, else the offline one; says which."""
    if _has_key(settings):
        write("model: the real one, with your key (this costs a little)")
        yield settings
        return
    from app.playground.model.server import create_model_app

    write("model: no key is set, so the offline model answers")
    async with serve(create_model_app()) as base_url:
        offline = {f"{name}_base_url": base_url for name in OFFLINE_KEYS} | {
            f"{name}_api_key": SecretStr(key) for name, key in OFFLINE_KEYS.items()
        }
        yield replace(settings, models=settings.models.model_copy(update=offline))


def _has_key(settings: Settings) -> bool:
    agent = settings.agents.default
    return not missing_for_agent(settings, agent) and not needs_own_key(settings, agent)


async def _run(
    settings: Settings, text: str, masker: Masker, write: Print, *, has_key: bool
) -> tuple[Attempt, TurnFinished]:
    """Raises: OrionError, SandboxError: it could not be asked."""
    now = datetime.now(UTC)
    request = RunRequest(
        run_id=run_id_for(team="verify", channel="verify", message_ts=f"{now.timestamp():.6f}"),
        team="verify",
        channel="verify",
        thread_ts=f"{now.timestamp():.6f}",
        message_ts=f"{now.timestamp():.6f}",
        user="verify",
        text=text,
        surface=Surface.DM,
        received_at=now,
    )
    # It works beside a running `orion serve`, whose environments it shares.
    settings = await with_namespace(settings)
    choice = await choose_provider(settings)
    async with (
        create_provider(settings, choice) as provider,
        open_visiting_broker(settings, is_remote=False) as broker,
    ):
        write(f"agent: {describe_agent(settings.agents.default)}")
        write(f"provider: {provider.name} ({choice.reason}); {await provider.probe()}")
        if Capability.REMOTE in provider.capabilities and not has_key:
            raise OrionError(
                ErrorCode.MODEL_AUTH_FAILED,
                "a sandbox in a cloud cannot reach the offline model on this machine; set a key for the model",
            )
        if settings.mount is not None:
            write(f"! {settings.mount.sentence}")
        sessions = MemoryRunStore().sessions
        policy = replace(run_policy(settings), session_keep_s=0)
        workspaces = Workspaces(
            provider=provider,
            store=sessions,
            policy=policy,
            mask=masker.mask,
            locks=SessionLocks(settings.session_locks_dir),
            on_gone=broker.close,
        )
        runner = create_runner(
            settings,
            provider=provider,
            # At the public address only `orion serve` answers.
            broker=create_direct_broker(settings, agent_spec(settings.agents.default).protocol)
            if Capability.REMOTE in provider.capabilities
            else broker,
            workspaces=workspaces,
            policy=policy,
        )
        attempt = Attempt(
            run=Run(id=request.run_id, request=request, created_at=now),
            conversation=Conversation(request=request),
            trace=ReportedTrace(write),
            stop=StopRequest(),
            display=Display(live=SilentReply(), tracker=ProgressTracker(masker.mask)),
            time=AttemptTime(
                started_at=now,
                deadline_at=now + timedelta(seconds=settings.limits.run_timeout_s),
            ),
        )
        finished = await runner.execute(attempt)
        assert isinstance(finished, TurnFinished)  # noqa: S101 - there are no slices
        for session in await sessions.all():
            await provider.delete_snapshot(SnapshotId(session.snapshot_slug))
    return attempt, finished

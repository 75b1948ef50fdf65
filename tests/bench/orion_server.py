"""`orion serve` with a fake sandbox and an agent that answers at once: what is left is Orion's own work.

Run as `python -m tests.bench.orion_server [--hold]`; settings come from the environment. With `--hold` no agent ever
answers, so that with one place for runs nothing runs after the placing.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence

from agent_scripts.adapter import AgentCommand, AgentFile, AgentPaths, AgentTurn, EnvironmentRecipe
from agent_scripts.adapters.anthropic_sdk import AnthropicParser
from app.commands.serve import serve
from app.config import load_settings
from app.main import Overrides
from sandbox_runtime.testing.fake import FakeProvider
from sandbox_runtime.testing.scripts import FakeCall, Stream
from sandbox_runtime.types import ExecEvent, ExecExited, ExecOutput, OutputStream

ANSWER = "An answer of the instant agent."


class InstantAdapter:
    """An agent without an environment, whose one file is its turn."""

    name = "instant"
    default_model = "claude-instant"
    helper_models: Sequence[str] = ()

    def environment(self, paths: AgentPaths) -> EnvironmentRecipe:
        marker = AgentFile(path=f"{paths.environment}/marker", data=b"instant")
        return EnvironmentRecipe(name="instant-1", files=(marker,), commands=(("true",),))

    def command(self, turn: AgentTurn) -> AgentCommand:
        request = AgentFile(
            path=f"{turn.paths.run}/request.json",
            data=json.dumps([message.text for message in turn.messages]).encode(),
        )
        return AgentCommand(argv=("instant",), env={}, files=(request,))

    def parser(self) -> AnthropicParser:
        return AnthropicParser()


def supervised_answer(*, hold: bool) -> Stream:
    """The records a supervisor writes about an agent that says one sentence."""

    async def stream(_call: FakeCall) -> AsyncIterator[ExecEvent]:
        if hold:
            await asyncio.Event().wait()
        yield _record("line", text=json.dumps({"type": "text", "text": ANSWER}))
        yield _record("line", text=json.dumps({"type": "final", "text": ANSWER}))
        yield _record("exit", code=0, reason="exited", survivors=0)
        yield ExecExited(exit_code=0)

    return stream


def _record(kind: str, **fields: object) -> ExecOutput:
    line = {"stream": "stdout", "truncated": False} if kind == "line" else {}
    record = {"kind": kind, "seq": 1, "t": time.time(), **line, **fields}
    return ExecOutput(stream=OutputStream.STDOUT, data=json.dumps(record).encode() + b"\n")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hold", action="store_true")
    hold = parser.parse_args().hold
    provider = FakeProvider()
    provider.script_stream(lambda call: call.operation == "spawn", supervised_answer(hold=hold))
    overrides = Overrides(provider=provider, adapter=InstantAdapter())
    return serve(load_settings(env_file=None), overrides=overrides)


if __name__ == "__main__":
    sys.exit(main())

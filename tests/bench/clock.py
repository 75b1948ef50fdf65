"""`orion serve` with an agent that answers when it began to run: `python -m tests.bench.clock`; settings as usual."""

import sys

from typing_extensions import override

from agent_scripts.adapter import (
    AgentAdapter,
    AgentCommand,
    AgentFile,
    AgentPaths,
    AgentSpec,
    AgentTurn,
    EnvironmentRecipe,
    ModelProtocol,
)
from agent_scripts.agents.anthropic.output import AnthropicParser
from app.cli.commands.serve import serve
from app.compose.adapters import Overrides
from app.settings.settings import load_settings

SCRIPT = """\
import time
began = time.time()
import json
print(json.dumps({"type": "final", "text": f"began at {began:.6f}"}), flush=True)
"""


class ClockAdapter(AgentAdapter):
    """Tells its first moment, by the clock that the sandbox shares with its host."""

    spec = AgentSpec(
        name="clock",
        protocol=ModelProtocol.ANTHROPIC,
        default_model="claude-clock",
        has_sessions=False,
    )

    @override
    def environment(self, paths: AgentPaths) -> EnvironmentRecipe:
        script = f"{paths.environment}/clock.py"
        return EnvironmentRecipe(
            name="clock-1",
            files=(AgentFile(path=script, data=SCRIPT.encode()),),
            commands=(("python3", "-m", "py_compile", script),),
        )

    @override
    def command(self, turn: AgentTurn) -> AgentCommand:
        script = f"{turn.paths.environment}/clock.py"
        return AgentCommand(argv=("python3", "-I", script), env={}, files=())

    @override
    def parser(self) -> AnthropicParser:
        return AnthropicParser()


if __name__ == "__main__":
    sys.exit(serve(load_settings(env_file=None), overrides=Overrides(adapter=ClockAdapter())))

"""`orion serve` with an agent that answers when it began to run: `python -m tests.bench.clock`; settings as usual."""

import sys
from collections.abc import Sequence

from agent_scripts.adapter import (
    AgentCommand,
    AgentFile,
    AgentPaths,
    AgentTurn,
    EnvironmentRecipe,
    ModelProtocol,
)
from agent_scripts.adapters.anthropic_sdk import AnthropicParser
from app.commands.serve import serve
from app.config import load_settings
from app.main import Overrides

SCRIPT = """\
import time
began = time.time()
import json
print(json.dumps({"type": "final", "text": f"began at {began:.6f}"}), flush=True)
"""


class ClockAdapter:
    """Tells its first moment, by the clock that the sandbox shares with its host."""

    name = "clock"
    protocol = ModelProtocol.ANTHROPIC
    default_model = "claude-clock"
    has_sessions = False
    takes_session_id = False
    reserved_bytes = 0
    helper_models: Sequence[str] = ()

    def model_id(self, name: str) -> str:
        return name

    def environment(self, paths: AgentPaths) -> EnvironmentRecipe:
        script = f"{paths.environment}/clock.py"
        return EnvironmentRecipe(
            name="clock-1",
            files=(AgentFile(path=script, data=SCRIPT.encode()),),
            commands=(("python3", "-m", "py_compile", script),),
        )

    def command(self, turn: AgentTurn) -> AgentCommand:
        script = f"{turn.paths.environment}/clock.py"
        return AgentCommand(argv=("python3", "-I", script), env={}, files=())

    def standby(self, paths: AgentPaths) -> AgentCommand | None:
        del paths
        return None

    def parser(self) -> AnthropicParser:
        return AnthropicParser()


if __name__ == "__main__":
    sys.exit(serve(load_settings(env_file=None), overrides=Overrides(adapter=ClockAdapter())))

"""The NAME agent: how it is installed and started."""

from pathlib import Path

from typing_extensions import override

from agent_scripts.adapter import (
    AgentAdapter,
    AgentCommand,
    AgentFile,
    AgentPaths,
    AgentTurn,
    EnvironmentRecipe,
    EventParser,
)
from agent_scripts.agents.NAME import SPEC
from agent_scripts.agents.NAME.output import NameParser
from agent_scripts.cli_agent import CliFiles, pinned_recipe, plain_environment

_SCRIPT = Path(__file__).parent / "environment" / "ask.py"


class NameAdapter(AgentAdapter):
    spec = SPEC

    @override
    def environment(self, paths: AgentPaths) -> EnvironmentRecipe:
        # `npm_recipe` for a command line from npm, `install_locked` for one from PyPI.
        script = AgentFile(path=f"{paths.environment}/ask.py", data=_SCRIPT.read_bytes())
        check = ("python3", "-m", "py_compile", script.path)
        return pinned_recipe(self.name, files=(script,), commands=(check,))

    @override
    def command(self, turn: AgentTurn) -> AgentCommand:
        files = CliFiles(turn)
        prompt_path, token_path = files.add_prompt(), files.add_token()
        return AgentCommand(
            argv=("python3", f"{turn.paths.environment}/ask.py", turn.model, token_path),
            env={**plain_environment(turn.paths), "MODEL_URL": turn.model_url},
            files=files.all(),
            stdin_path=prompt_path,
        )

    @override
    def parser(self) -> EventParser:
        return NameParser()

"""An agent that does what the message says: a JSON list of steps."""

import json
from collections.abc import Mapping, Sequence

from typing_extensions import override

from agent_scripts.adapter import (
    ENDED_BY_US,
    AgentAdapter,
    AgentCommand,
    AgentExit,
    AgentFile,
    AgentPaths,
    AgentSpec,
    AgentTurn,
    EnvironmentRecipe,
    ModelProtocol,
)
from agent_scripts.events import (
    AgentErrorCode,
    AgentEvent,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnFinished,
)

Plan = Sequence[Mapping[str, object]]

ANSWER = [{"text": "work"}, {"tool": "ls"}, {"final": "the answer"}]
SCRIPT = """\
import json, os, subprocess, sys, time
turn = json.load(open(sys.argv[1]))
for step in turn["plan"]:
    if "sleep" in step:
        time.sleep(step["sleep"])
    elif "write" in step:
        with open(step["write"], "a") as file:
            file.write(step["text"])
        print(json.dumps({"tool": step["write"]}), flush=True)
    elif "read" in step:
        found = open(step["read"]).read() if os.path.exists(step["read"]) else "nothing"
        print(json.dumps({"final": found}), flush=True)
    elif "list" in step:
        names = sorted(os.listdir(step["list"])) if os.path.isdir(step["list"]) else []
        held = {name: open(os.path.join(step["list"], name), "rb").read(64).hex() for name in names}
        print(json.dumps({"final": json.dumps(held)}), flush=True)
    elif "run" in step:
        subprocess.run(step["run"], shell=True)
        print(json.dumps({"tool": step["run"]}), flush=True)
    elif "exit" in step:
        sys.exit(step["exit"])
    else:
        print(json.dumps(step), flush=True)
"""


class PlanAdapter(AgentAdapter):
    """An agent that does what the message says: a JSON list of steps."""

    def __init__(self, *, has_sessions: bool = False, takes_session_id: bool = False) -> None:
        self.spec = AgentSpec(
            name="plan",
            protocol=ModelProtocol.ANTHROPIC,
            default_model="plan-1",
            has_sessions=has_sessions,
            takes_session_id=takes_session_id,
        )
        self.turns: list[AgentTurn] = []

    @override
    def environment(self, paths: AgentPaths) -> EnvironmentRecipe:
        marker = AgentFile(path=f"{paths.environment}/marker", data=b"plan")
        return EnvironmentRecipe(name="plan-1", files=(marker,), commands=(("true",),))

    @override
    def command(self, turn: AgentTurn) -> AgentCommand:
        self.turns.append(turn)
        # A question that was not answered stands before the next one, and what came with a message behind its text.
        lines = turn.messages[-1].text.splitlines()
        plan = [json.loads(line) for line in lines if line.startswith("[{")][-1]
        request = json.dumps({"plan": plan, "token": turn.run_token}).encode()
        return AgentCommand(
            argv=("python3", f"{turn.paths.run}/plan.py", f"{turn.paths.run}/request.json"),
            env={"RELAY": "{relay}"},
            files=(
                AgentFile(path=f"{turn.paths.run}/plan.py", data=SCRIPT.encode()),
                AgentFile(path=f"{turn.paths.run}/request.json", data=request),
            ),
        )

    @override
    def parser(self) -> "PlanParser":
        return PlanParser()


class PlanParser:
    def __init__(self) -> None:
        self._text = ""
        self._final: str | None = None
        self._cost_usd: float | None = None

    def feed(self, line: str) -> Sequence[AgentEvent]:
        match json.loads(line):
            case {"text": str(text)}:
                self._text += text
                return [TextDelta(text=text)]
            case {"tool": str(argument)}:
                return [
                    ToolStarted(tool_id=argument, name="shell", argument=argument),
                    ToolFinished(tool_id=argument, is_error=False, output_bytes=1),
                ]
            case {"final": str(text)}:
                self._final = text
                return []
            case {"cost_usd": int() | float() as dollars}:
                self._cost_usd = dollars
                return []
            case _:
                return []

    def finish(self, agent_exit: AgentExit) -> TurnFinished:
        if agent_exit.reason == "exited" and agent_exit.exit_code == 0 and self._final:
            return TurnFinished(text=self._final, cost_usd=self._cost_usd)
        code = ENDED_BY_US.get(agent_exit.reason, AgentErrorCode.EXECUTION_FAILED)
        return TurnFinished(
            text=self._text,
            error=code,
            detail=agent_exit.stderr_tail,
            cost_usd=self._cost_usd,
        )

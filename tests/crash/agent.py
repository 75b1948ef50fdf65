"""A small real agent: it runs in the real sandbox under the real supervisor, and its environment is made in a moment."""

import json

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

SCRIPT = """\
import json, os, re, shutil, sys, time, urllib.request
asked = json.load(open(sys.argv[1]))
slow = re.search(r"!slow (\\d+)", asked)
pause_s = float(slow[1]) / 40 if slow else 0.01
tool = {"id": "1", "name": "shell", "argument": "touch here", "is_error": False, "output_bytes": 0}
open("here", "a").close()
if os.path.isdir("in"):
    shutil.copytree("in", "out", dirs_exist_ok=True)
print(json.dumps({"type": "tool_started", **tool}), flush=True)
print(json.dumps({"type": "tool_finished", **tool}), flush=True)
def act():
    # As a model would that was told to go on waiting.
    call = {"name": "note", "arguments": {"text": "once"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    headers = {
        "authorization": "Bearer " + os.environ["RUN_TOKEN"],
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2025-06-18",
    }
    def ask(body):
        asked = urllib.request.Request(address, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(asked, timeout=90) as answer:
            headers["mcp-session-id"] = answer.headers.get("mcp-session-id", headers.get("mcp-session-id", ""))
            return answer.read().decode()
    address = os.environ["BROKER"] + "/mcp/notes"
    client = {"name": "small", "version": "1"}
    begin = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    for _ in range(100):
        try:
            if "mcp-session-id" not in headers:
                ask({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": begin})
                ask({"jsonrpc": "2.0", "method": "notifications/initialized"})
            said = ask(body)
        except OSError as exc:
            return "failed: " + str(exc)
        if "waiting for a person" not in said:
            return "done" if "kept once" in said else "not done: " + said
    return "never"
if asked.startswith("act"):
    print(json.dumps({"type": "final", "text": act()}), flush=True)
    sys.exit()
words = ("I am a small agent and I write slowly. " * 5).split() if slow else asked.split()
for word in words:
    print(json.dumps({"type": "text", "text": word + " "}), flush=True)
    time.sleep(pause_s)
print(json.dumps({"type": "final", "text": " ".join(words)}), flush=True)
"""


class SmallAdapter(AgentAdapter):
    """Touches a file, asks to note something outside where it is told to act, and says again what it was told; `!slow 5` makes it write for five seconds, as with the offline model."""

    spec = AgentSpec(
        name="small",
        protocol=ModelProtocol.ANTHROPIC,
        default_model="claude-small",
        has_sessions=False,
    )

    @override
    def environment(self, paths: AgentPaths) -> EnvironmentRecipe:
        script = f"{paths.environment}/small.py"
        return EnvironmentRecipe(
            name="small-6",
            files=(AgentFile(path=script, data=SCRIPT.encode()),),
            commands=(("python3", "-m", "py_compile", script),),
        )

    @override
    def command(self, turn: AgentTurn) -> AgentCommand:
        asked = f"{turn.paths.run}/asked.json"
        data = json.dumps(turn.messages[-1].text).encode("ascii")
        return AgentCommand(
            argv=("python3", f"{turn.paths.environment}/small.py", asked),
            env={
                "HOME": turn.paths.home,
                "BROKER": "{relay}/broker",
                "RUN_TOKEN": turn.run_token,
            },
            files=(AgentFile(path=asked, data=data),),
        )

    @override
    def parser(self) -> AnthropicParser:
        return AnthropicParser()

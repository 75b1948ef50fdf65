"""The `anthropic` agent: our own script on the Anthropic SDK, with a shell and an edit tool."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_scripts.adapter import (
    ENDED_BY_US,
    IDLE_NOTE,
    AgentCommand,
    AgentExit,
    AgentFile,
    AgentPaths,
    AgentTurn,
    EnvironmentRecipe,
    EventParser,
    ModelProtocol,
)
from agent_scripts.claude_models import DEFAULT_MODEL, claude_model
from agent_scripts.errors import AgentErrorCode
from agent_scripts.events import (
    AgentEvent,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    UsageReported,
)
from agent_scripts.output_lines import MAX_DETAIL_CHARS, count_of, read_record
from agent_scripts.supervision import inside_files, inside_path

_SCRIPT_FILES = (
    *("anthropic_agent.py", "agent_tools.py", "process_tree.py", "rehearsal.py", "standby.py"),
)
_LOCK = Path(__file__).parent.parent / "environments" / "anthropic.lock"
_MODEL_SILENCE_S = 90
_TOOL_TIMEOUT_S = 300
_TOOL_OUTPUT_BYTES = 30_000
_MAX_ARGUMENT_CHARS = 2000


class AnthropicAdapter:
    """Implements AgentAdapter."""

    name = "anthropic"
    protocol = ModelProtocol.ANTHROPIC
    default_model = DEFAULT_MODEL
    has_sessions = False
    takes_session_id = False
    reserved_bytes = 0
    helper_models: Sequence[str] = ()

    def model_id(self, name: str) -> str:
        return claude_model(name)

    def environment(self, paths: AgentPaths) -> EnvironmentRecipe:
        root = paths.environment
        python = f"{root}/venv/bin/python"
        lock = f"{root}/requirements.lock"
        pip = "-m pip install --require-hashes --no-input --disable-pip-version-check --no-cache-dir -q -r"
        files = (AgentFile(path=lock, data=_LOCK.read_bytes()),)
        commands = (
            ("python3", "-m", "venv", f"{root}/venv"),
            (python, *pip.split(), lock),
            # An inherited PYTHONDONTWRITEBYTECODE would leave each run to compile the SDK anew: seconds.
            (python, "-m", "compileall", "-q", f"{root}/venv/lib"),
            (python, "-c", "import anthropic"),
        )
        digest = hashlib.sha256(json.dumps(commands).encode() + files[0].data).hexdigest()
        (version,) = re.findall(r"^anthropic==(\S+)", files[0].data.decode(), re.MULTILINE)
        return EnvironmentRecipe(
            name=f"{self.name}-{digest[:12]}",
            files=files,
            commands=commands,
            product=f"anthropic {version}",
        )

    def command(self, turn: AgentTurn) -> AgentCommand:
        paths = turn.paths
        request_path = f"{paths.run}/request.json"
        request = {
            "model": turn.model,
            "system": turn.system_prompt,
            "messages": [
                {"role": message.role, "content": message.text} for message in turn.messages
            ],
            "max_tokens": turn.max_output_tokens,
            "max_turns": turn.max_turns,
            "silence_timeout_s": _MODEL_SILENCE_S,
            "work": paths.work,
            "tool_timeout_s": _TOOL_TIMEOUT_S,
            "tool_output_bytes": _TOOL_OUTPUT_BYTES,
        }
        return AgentCommand(
            argv=(*_script(paths), request_path),
            env={
                "ANTHROPIC_BASE_URL": turn.model_url,
                "ANTHROPIC_API_KEY": turn.run_token,
                **_surroundings(paths),
            },
            # ASCII escapes carry whatever a message holds, lone surrogates too.
            files=(
                AgentFile(path=request_path, data=json.dumps(request).encode("ascii")),
                *inside_files(paths, _SCRIPT_FILES),
            ),
        )

    def standby(self, paths: AgentPaths) -> AgentCommand:
        return AgentCommand(
            argv=_script(paths), env=_surroundings(paths), files=inside_files(paths, _SCRIPT_FILES)
        )

    def parser(self) -> EventParser:
        return AnthropicParser()


class AnthropicParser:
    """Reads what `inside/anthropic_agent.py` prints: one JSON object a line."""

    def __init__(self) -> None:
        self._written: list[str] = []
        self._final: str | None = None
        self._error: tuple[AgentErrorCode, str] | None = None

    def feed(self, line: str) -> Sequence[AgentEvent]:
        record = read_record(line)
        if record is None:
            return ()
        try:
            read = _READERS.get(record["type"])
            if read is not None:
                event = read(record)
                if isinstance(event, TextDelta):
                    self._written.append(event.text)
                return (event,)
            self._read_terminal(record)
        except (TypeError, KeyError):
            pass  # a stray print of a library or tool is no event
        return ()

    def finish(self, agent_exit: AgentExit) -> TurnFinished:
        written = (self._final or "".join(self._written)).strip()
        if agent_exit.reason == "idle" and self._final:
            return TurnFinished(text=written, notes=(IDLE_NOTE,))
        if agent_exit.reason != "exited":
            detail = f"ended by the supervisor: {agent_exit.reason}"
            return TurnFinished(text=written, error=ENDED_BY_US[agent_exit.reason], detail=detail)
        if self._error is not None:
            code, detail = self._error
            return TurnFinished(text=written, error=code, detail=detail)
        if agent_exit.exit_code != 0:
            said = agent_exit.stderr_tail[-MAX_DETAIL_CHARS:]
            detail = f"exit code {agent_exit.exit_code}: {said}"
            return TurnFinished(text=written, error=AgentErrorCode.EXECUTION_FAILED, detail=detail)
        if not self._final:
            detail = "exit code 0 without a final answer"
            return TurnFinished(text=written, error=AgentErrorCode.NO_ANSWER, detail=detail)
        return TurnFinished(text=written)

    def _read_terminal(self, record: Mapping[str, Any]) -> None:
        if record["type"] == "final":
            self._final = str(record["text"]).strip()
        elif record["type"] == "error":
            known = record["code"] in set(AgentErrorCode)
            code = AgentErrorCode(record["code"]) if known else AgentErrorCode.EXECUTION_FAILED
            self._error = (code, f"{record.get('message', '')} (status {record.get('status')})")


def _script(paths: AgentPaths) -> tuple[str, str]:
    return f"{paths.environment}/venv/bin/python", inside_path(paths, "anthropic_agent.py")


def _surroundings(paths: AgentPaths) -> dict[str, str]:
    return {"HOME": paths.home, "LANG": "C.UTF-8", "NO_PROXY": "127.0.0.1"}


def _read_tool_started(record: Mapping[str, Any]) -> AgentEvent:
    argument = " ".join(str(record["argument"]).split())[:_MAX_ARGUMENT_CHARS]
    return ToolStarted(tool_id=str(record["id"]), name=str(record["name"]), argument=argument)


def _read_tool_finished(record: Mapping[str, Any]) -> AgentEvent:
    return ToolFinished(
        tool_id=str(record["id"]),
        is_error=bool(record["is_error"]),
        output_bytes=count_of(record, "output_bytes"),
    )


def _read_usage(record: Mapping[str, Any]) -> AgentEvent:
    return UsageReported(
        model=str(record["model"]),
        input_tokens=count_of(record, "input_tokens"),
        output_tokens=count_of(record, "output_tokens"),
        cache_read_tokens=count_of(record, "cache_read_tokens"),
        cache_creation_tokens=count_of(record, "cache_creation_tokens"),
    )


_READERS: dict[str, Callable[[Mapping[str, Any]], AgentEvent]] = {
    "text": lambda record: TextDelta(text=str(record["text"])),
    "tool_started": _read_tool_started,
    "tool_finished": _read_tool_finished,
    "usage": _read_usage,
}

"""Records what the pinned command lines of agents print, as test data of their parsers: `make record-transcripts`.

Each file holds the lines of one turn and, as its last line, how the process ended. What differs from run to run (ids, times,
ports) is replaced.
"""

import json
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agent_scripts.adapter import AgentAdapter, AgentSession
from sandbox_runtime.lifecycle import open_sandbox
from tests.agents.agent_rig import RigTurn, open_rig

OUR_ID = "5e551000-0000-4000-8000-0000000000{:02}"
"""Session ids that we made; they stay."""
_UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One turn to record."""

    name: str
    texts: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    resumes: str = ""
    """The scene whose session this one goes on with, by the id that the agent told there."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What differs from run to run."""

    pattern: re.Pattern[str]
    replacement: str
    """With `{number}`, each thing that the pattern finds has a number of its own, by its first appearance."""


COMMON_NOISE = (
    Noise(pattern=re.compile(r"127\.0\.0\.1:\d+"), replacement="127.0.0.1:1"),
    Noise(pattern=_UUID, replacement="00000000-0000-4000-8000-{number:012}"),
)


_UNKNOWN_IDS = {
    "codex": OUR_ID.format(2),
    "opencode": "ses_5e5510000000orionorionorio",
}
_NOBODY = b'{"mcpServers":{"gone":{"command":"false","args":[]}}}'
TURNS = (
    Scene(name="tools", texts=("run: echo one\nedit: notes.txt\nrun: exit 3",)),
    Scene(name="resumed", texts=("what did I ask?",), resumes="tools"),
    Scene(name="mcp-failed", texts=("run: true",), options={"mcp_config": _NOBODY}),
    Scene(name="stopped", texts=("run: sleep 20",), options={"stop_at": '"text":"'}),
)
"""For agents that make the ids of their sessions themselves."""
FAILURES = (
    Scene(name="session-unknown", texts=("hello",), resumes="unknown"),
    Scene(name="status-401", texts=("hello",), options={"has_grant": False}),
    Scene(name="status-403", texts=("hello",), options={"granted_model": "another"}),
    Scene(name="status-404", texts=("hello",), options={"model": "no-such-model"}),
    Scene(name="status-429", texts=("!429",)),
    Scene(name="status-500", texts=("!500",)),
    Scene(name="status-529", texts=("!529",)),
    Scene(name="retried-500", texts=("!500 1",)),
    Scene(name="context", texts=("!context",)),
    Scene(name="refused", texts=("!refuse",)),
    Scene(name="garbage", texts=("!garbage",)),
    Scene(name="cut", texts=("!cut",)),
)


async def record(
    adapter: AgentAdapter, package: str, scenes: Sequence[Scene], noise: Sequence[Noise]
) -> None:
    """Record every scene, or those that the command line names, again, each into `tests/data/AGENT/VERSION-SCENE.jsonl`, in one sandbox."""
    path_of = _paths(adapter.name, _version_of(adapter.name, package))
    names = sys.argv[1:]
    sessions = {"unknown": _UNKNOWN_IDS.get(adapter.name, OUR_ID.format(2))}
    async with AsyncExitStack() as stack:
        state = Path(stack.enter_context(TemporaryDirectory()), "state")
        rig = await stack.enter_async_context(open_rig(state, adapter))
        sandbox = await stack.enter_async_context(open_sandbox(rig.provider, rig.spec()))
        for scene in scenes:
            if names and scene.name not in names:
                continue
            options = dict(scene.options)
            if scene.resumes:
                options["session"] = AgentSession(id=sessions[scene.resumes], resume=True)
            turn = await rig.ask(sandbox, *scene.texts, **options)
            sessions[scene.name] = turn.finished.agent_session_id or ""
            path = path_of(scene)
            path.write_text(transcript(turn, noise))
            print(f"{path}: {turn.finished.error or 'answered'}, {turn.duration_s:.1f} s")  # noqa: T201


def _version_of(agent: str, package: str) -> str:
    """The one that is pinned: in npm's file, or in pip's."""
    environment = Path("agent_scripts/agents", agent, "environment")
    if (lock := environment / "requirements.lock").exists():
        return str(re.findall(rf"^{package}==(\S+)", lock.read_text(), re.MULTILINE)[0])
    pins = json.loads((environment / "package.json").read_text())
    return str(pins["dependencies"][package])


def _paths(agent: str, version: str) -> Callable[[Scene], Path]:
    folder = Path("tests/data", agent)
    folder.mkdir(exist_ok=True)
    return lambda scene: folder / f"{version}-{scene.name}.jsonl"


def transcript(turn: RigTurn, noise: Sequence[Noise]) -> str:
    """The turn as the text of its file."""
    ended = {
        "exit_code": turn.ended.exit_code,
        "reason": turn.ended.reason,
        "stderr_tail": turn.ended.stderr_tail,
    }
    text = "\n".join([*turn.lines, json.dumps(ended)]) + "\n"
    for one in (*noise, *COMMON_NOISE):
        text = _without(text, one)
    return text


def _without(text: str, noise: Noise) -> str:
    numbers: dict[str, int] = {}

    def name(found: re.Match[str]) -> str:
        word = found[0]
        if word.startswith(OUR_ID[:8]):
            return word
        number = numbers.setdefault(word, len(numbers) + 1)
        return found.expand(noise.replacement.format(number=number))

    return noise.pattern.sub(name, text)

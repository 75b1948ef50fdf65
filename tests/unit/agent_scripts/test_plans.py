"""What agents tell of their plans, in each one's own form."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from agent_scripts.adapter import EventParser
from agent_scripts.agents.claude.output import ClaudeCodeParser
from agent_scripts.agents.codex.output import CodexParser
from agent_scripts.agents.copilot.output import CopilotParser
from agent_scripts.agents.cursor.output import CursorParser
from agent_scripts.agents.gemini.output import GeminiParser
from agent_scripts.agents.opencode.output import OpenCodeParser
from agent_scripts.cli_output import plan_in
from agent_scripts.events import ToolStarted

WANTED = [("read it", "completed"), ("write it", "in_progress"), ("test it", "pending")]
SESSION = "2f6d2a4c-6d3e-4c6e-9f43-0d5f0d5f0d5f"


def listed(title: str, *, prefix: str = "") -> list[dict[str, str]]:
    return [{title: text, "status": prefix + status} for text, status in WANTED]


CLAUDE = {
    "type": "assistant",
    "session_id": SESSION,
    "message": {
        "id": "m1",
        "content": [
            {
                "type": "tool_use",
                "id": "t1",
                "name": "TodoWrite",
                "input": {"todos": listed("content")},
            }
        ],
    },
}
GEMINI = {
    "type": "tool_use",
    "tool_id": "t1",
    "tool_name": "write_todos",
    "parameters": {"todos": listed("description")},
}
OPENCODE = {
    "type": "tool_use",
    "sessionID": "ses_0123456789abcdefABCDEFGHIJ",
    "part": {
        "callID": "t1",
        "tool": "todowrite",
        "state": {"status": "completed", "input": {"todos": listed("content")}, "output": ""},
    },
}
COPILOT = {
    "type": "tool.execution_start",
    "data": {
        "toolCallId": "t1",
        "toolName": "update_todo",
        "arguments": {"todos": "- [x] read it\n- [ ] write it\n* [ ] test it"},
    },
}
CURSOR = {
    "type": "tool_call",
    "subtype": "started",
    "call_id": "t1",
    "tool_call": {
        "updateTodosToolCall": {
            "args": {
                "todos": [
                    {"content": text, "status": f"TODO_STATUS_{status.upper()}"}
                    for text, status in WANTED
                ]
            }
        }
    },
}


@pytest.mark.parametrize(
    ("new_parser", "line"),
    [
        pytest.param(ClaudeCodeParser, CLAUDE, id="claude"),
        pytest.param(GeminiParser, GEMINI, id="gemini"),
        pytest.param(OpenCodeParser, OPENCODE, id="opencode"),
        pytest.param(CursorParser, CURSOR, id="cursor"),
    ],
)
def test_a_plan_is_read_with_its_states(
    new_parser: Callable[[], EventParser], line: dict[str, Any]
) -> None:
    """Its tool is told with the whole plan."""
    started = [one for one in new_parser().feed(json.dumps(line)) if isinstance(one, ToolStarted)]
    assert [[(step.title, step.status) for step in one.plan] for one in started] == [WANTED]


def test_copilot_tells_no_more_than_what_is_done() -> None:
    """Its check boxes have two states."""
    (started,) = CopilotParser().feed(json.dumps(COPILOT))
    assert isinstance(started, ToolStarted)
    states = [step.status for step in started.plan]
    assert states == ["completed", "pending", "pending"]


def test_codex_tells_its_plan_again_with_each_step() -> None:
    """None of that is a tool call."""
    parser = CodexParser()
    told: list[object] = []
    for states in (["inProgress", "pending"], ["completed", "inProgress"]):
        plan = [{"step": step, "status": state} for step, state in zip("ab", states, strict=True)]
        line = {"method": "turn/plan/updated", "params": {"turnId": "t", "plan": plan}}
        told += parser.feed(json.dumps(line))
    assert all(isinstance(event, ToolStarted) for event in told)
    assert [[s.status for s in event.plan] for event in told if isinstance(event, ToolStarted)] == [
        ["in_progress", "pending"],
        ["completed", "in_progress"],
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        *(None, "text", [], {}, {"todos": None}, {"todos": 3}, {"todos": [3]}, {"todos": [{}]}),
        *({"items": ["a", "b"]}, {"command": "ls"}, {"todos": "no boxes"}),
        *({"todos": [{"content": "a"}, {"other": "b"}]}, {"plan": [{"content": ["a"]}]}),
    ],
)
def test_what_is_no_plan_is_none(arguments: object) -> None:
    """It is told as any other tool call."""
    assert plan_in(arguments) == ()


def test_a_plan_is_bounded() -> None:
    """In steps, and each in length, on one line."""
    steps = plan_in({"todos": [{"content": f"{n}\n" + "x" * 900} for n in range(200)]})
    assert len(steps) == 50
    assert {len(step.title) for step in steps} == {200}
    assert "\n" not in steps[0].title

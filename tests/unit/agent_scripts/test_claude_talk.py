"""What stands between the supervisor and Claude Code, with a small CLI in its place that says what the real one does."""

import signal
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.unit.agent_scripts.talking import Talking, open_talk

CLI = """
import json, os, sys, time

def say(kind, **fields):
    print(json.dumps({"type": kind, "session_id": "s", **fields}), flush=True)

def state(asked, word):
    say("command_lifecycle", command_uuid=asked["uuid"], state=word)

def stream(kind, **fields):
    say("stream_event", event={"type": kind}, parent_tool_use_id=None, **fields)

def hear():
    line = sys.stdin.readline()
    return json.loads(line) if line else None

mode = sys.argv[1]
first = hear()
if mode == "deaf":
    os.close(0)
    state(first, "started")
    time.sleep(1)
    sys.exit(7)
if mode == "old":
    say("result", said=first["message"]["content"])
    sys.exit(0 if hear() is None else 9)
state(first, "started")
if mode == "dies":
    sys.exit(7)
if mode in ("writes", "hangs"):
    stream("message_start")
if mode == "hangs":
    time.sleep(60)
if mode != "quiet":
    told = hear()
    if mode == "writes":
        assert hear()["request"] == {"subtype": "interrupt"}
        say("result", terminal_reason="aborted_streaming")
        state(first, "cancelled")
    state(told, "started")
    say("told", content=told["message"]["content"])
    state(told, "completed")
say("result")
state(first, "completed")
sys.exit(3 if hear() is None else 9)
"""


HELLO = {"text": "hello", "images": []}


def talking(
    directory: Path, mode: str, message: Mapping[str, Any]
) -> AbstractContextManager[Talking]:
    return open_talk(directory, "claude", CLI, mode, {"message": message})


def kinds(records: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(one.get("state", one["type"])) for one in records]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("mode", ["writes", "uses a tool"])
def test_it_is_told_while_it_works(tmp_path: Path, mode: str) -> None:
    """What is written breaks off, a tool does not; that it was heard is said where the CLI says so, and its exit code is ours."""
    with talking(tmp_path, mode, HELLO) as talk:
        assert talk.line()["state"] == "started"
        talk.tell("run_1", "and this \ud800")
        rest = talk.rest()
        assert talk.process.wait() == 3
    assert next(one for one in rest if one["type"] == "heard")["id"] == "run_1"
    after = rest[kinds(rest).index("started") :]
    assert kinds(after)[:3] == ["started", "heard", "told"]
    assert after[2]["content"] == [{"type": "text", "text": "and this \ufffd"}]


@pytest.mark.timeout(30)
def test_nobody_tells_it_anything(tmp_path: Path) -> None:
    """It ends with its turn, once it can be told no more."""
    with talking(tmp_path, "quiet", HELLO) as talk:
        assert kinds(talk.rest()) == ["started", "result", "completed"]
        assert talk.process.wait() == 3


@pytest.mark.timeout(30)
def test_a_version_that_does_not_say_how_far_it_is(tmp_path: Path) -> None:
    """Its result is its end. Pictures stand before the words."""
    (tmp_path / "a.png").write_bytes(b"png")
    images = [{"path": str(tmp_path / "a.png"), "media_type": "image/png"}]
    with talking(tmp_path, "old", {**HELLO, "images": images}) as talk:
        (result,) = talk.rest()
        assert talk.process.wait() == 0
    assert [block["type"] for block in result["said"]] == ["image", "text"]


@pytest.mark.timeout(30)
def test_a_cli_that_dies(tmp_path: Path) -> None:
    """Before it hears a message that is there: nobody is told that it was heard."""
    with talking(tmp_path, "dies", HELLO) as talk:
        talk.tell("run_1", "x")
        assert "heard" not in kinds(talk.rest())
        assert talk.process.wait() == 7


@pytest.mark.timeout(30)
def test_a_cli_that_hears_no_more(tmp_path: Path) -> None:
    """What it is told is lost, and its exit code is ours all the same."""
    with talking(tmp_path, "deaf", HELLO) as talk:
        assert talk.line()["state"] == "started"
        talk.tell("run_1", "x")
        assert talk.rest() == []
        assert talk.process.wait() == 7


@pytest.mark.timeout(30)
def test_a_stop_reaches_the_cli(tmp_path: Path) -> None:
    """Which may say its last words."""
    with talking(tmp_path, "hangs", HELLO) as talk:
        assert kinds([talk.line(), talk.line()]) == ["started", "stream_event"]
        talk.process.send_signal(signal.SIGTERM)
        assert talk.rest() == []
        assert talk.process.wait() == 128 + signal.SIGTERM

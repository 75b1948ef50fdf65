"""What stands between the supervisor and Codex's server, with a small one in its place that answers as the real one does."""

import signal
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.unit.agent_scripts.talking import Talking, open_talk

SERVER = """
import json, os, sys, time

def say(**record):
    print(json.dumps(record), flush=True)

def hear(method):
    line = sys.stdin.readline()
    record = json.loads(line) if line else {"method": None}
    assert record["method"] == method, record
    return record

def answer(asked, **result):
    say(id=asked["id"], result=result)

mode = sys.argv[1]
asked = hear("initialize")
if mode == "dies":
    sys.exit(7)
answer(asked)
hear("initialized")
if mode in ("newest", "none yet"):
    asked = hear("thread/list")
    assert asked["params"]["cwd"] == os.getcwd()
    if mode == "none yet":
        answer(asked, data=[])
        hear(None)
        sys.exit(0)
    answer(asked, data=[{"id": "T"}])
if mode in ("newest", "known", "unknown"):
    asked = hear("thread/resume")
    assert asked["params"]["threadId"] == "T"
else:
    asked = hear("thread/start")
assert asked["params"]["model"] == "m"
if mode == "unknown":
    say(id=asked["id"], error={"code": -32600, "message": "no rollout found for thread id T"})
    hear(None)
    sys.exit(0)
answer(asked, thread={"id": "T"})
asked = hear("turn/start")
answer(asked, turn={"id": "U"})
say(method="said", params=asked["params"]["input"])
if mode == "asks":
    say(id="q", method="item/tool/requestUserInput", params={})
    line = json.loads(sys.stdin.readline())
    assert line["id"] == "q" and line["error"]["code"] == -32601
if mode in ("hears", "late"):
    told = hear("turn/steer")
    assert told["params"]["expectedTurnId"] == "U"
    if mode == "hears":
        answer(told, turnId="U")
        say(method="told", params=told["params"])
    else:
        say(id=told["id"], error={"code": -32600, "message": "no active turn to steer"})
if mode == "hangs":
    time.sleep(60)
say(method="turn/completed", params={})
hear(None)
sys.exit(3)
"""


def talking(
    directory: Path, mode: str, *, resume: str | None = None, images: Sequence[str] = ()
) -> AbstractContextManager[Talking]:
    request = {
        "text": "hello \ud800",
        "images": list(images),
        "options": {"model": "m"},
        "resume": resume,
        "rules": str(directory / "rules"),
    }
    return open_talk(directory, "codex", SERVER, mode, request)


def methods(records: Sequence[Mapping[str, Any]]) -> list[str]:
    return [one["method"] for one in records if "method" in one]


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("mode", "resume"), [("new", None), ("known", "T"), ("newest", ""), ("asks", None)]
)
def test_a_turn(tmp_path: Path, mode: str, resume: str | None) -> None:
    """In a new thread, a known one or the newest; its pictures stand before its words; who asks is told that nobody is here."""
    with talking(tmp_path, mode, resume=resume, images=["/a.png"]) as talk:
        lines = talk.rest()
        assert talk.process.wait() == 3
    said = next(one["params"] for one in lines if one.get("method") == "said")
    assert said == [
        {"type": "localImage", "path": "/a.png"},
        {"type": "text", "text": "hello \ufffd"},
    ]
    assert methods(lines)[-1] == "turn/completed"


@pytest.mark.timeout(30)
@pytest.mark.parametrize(("mode", "resume"), [("unknown", "T"), ("none yet", "")])
def test_a_thread_that_is_not_there(tmp_path: Path, mode: str, resume: str) -> None:
    """Is told in the server's words, and there is no turn."""
    with talking(tmp_path, mode, resume=resume) as talk:
        *_, last = talk.rest()
        assert talk.process.wait() == 0
    assert last["error"]["message"].startswith("no rollout found")


@pytest.mark.timeout(30)
def test_it_is_told_while_it_works(tmp_path: Path) -> None:
    """Under the name by which the server says later that it was heard."""
    with talking(tmp_path, "hears") as talk:
        talk.tell("run_1", "and this \ud800")
        lines = talk.rest()
        assert talk.process.wait() == 3
    told = next(one["params"] for one in lines if one.get("method") == "told")
    assert told["clientUserMessageId"] == "run_1"
    assert told["input"] == [{"type": "text", "text": "and this \ufffd"}]


@pytest.mark.timeout(30)
def test_a_message_that_comes_too_late(tmp_path: Path) -> None:
    """Changes nothing: the turn goes on to its end."""
    with talking(tmp_path, "late") as talk:
        talk.tell("run_1", "x")
        assert methods(talk.rest())[-1] == "turn/completed"
        assert talk.process.wait() == 3


@pytest.mark.timeout(30)
def test_a_server_that_dies(tmp_path: Path) -> None:
    """Its exit code is ours."""
    with talking(tmp_path, "dies") as talk:
        assert talk.rest() == []
        assert talk.process.wait() == 7


@pytest.mark.timeout(30)
def test_a_stop_reaches_the_server(tmp_path: Path) -> None:
    """While it works."""
    with talking(tmp_path, "hangs") as talk:
        while talk.line().get("method") != "said":
            pass
        talk.process.send_signal(signal.SIGTERM)
        assert talk.rest() == []
        assert talk.process.wait() == 128 + signal.SIGTERM


@pytest.mark.timeout(30)
def test_rules_of_an_earlier_turn_are_gone(tmp_path: Path) -> None:
    """An agent could forbid commands to itself by them; where there are none nothing is amiss."""
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "a.rules").write_text('prefix_rule(pattern=["echo"])')
    with talking(tmp_path, "new") as talk:
        talk.rest()
    assert not (tmp_path / "rules").exists()

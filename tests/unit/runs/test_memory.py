"""What an agent remembers, as the record of its thread has it."""

from dataclasses import replace

from agent_scripts.events import TurnFinished
from app.runs.memory import AgentMemory
from app.runs.model import Thread
from app.runs.session import Session, SessionId
from tests.building import T0

SESSION = Session(
    id=SessionId("ses_1"),
    name="calm-otter",
    thread=Thread(team="T1", channel="C1", thread_ts="1.000001"),
    provider="local",
    created_at=T0,
    used_at=T0,
)
KNOWN = AgentMemory(session_id="a", until_ts="9.000001")


def after(message_ts: str, told: str | None) -> AgentMemory:
    finished = TurnFinished(text="done", agent_session_id=told)
    return KNOWN.after(finished, message_ts=message_ts)


def test_it_grows_with_each_turn() -> None:
    """By time, not by text; also where the agent tells no id again."""
    assert after("10.000001", "a") == AgentMemory(session_id="a", until_ts="10.000001")
    assert after("10.000001", None) == AgentMemory(session_id="a", until_ts="10.000001")


def test_an_older_question_that_is_tried_again_takes_nothing_from_it() -> None:
    """Unless that began a new session, which was told what came before the question, and no more."""
    assert after("8.000001", "a") == KNOWN
    assert after("8.000001", "b") == AgentMemory(session_id="b", until_ts="8.000001")


def test_the_record_keeps_it_with_its_session() -> None:
    """Of another session, of none, and of a record from before, nobody knows how far it goes; the rest stays."""
    changes = SESSION.with_memory(KNOWN)
    kept = replace(SESSION, extra={"elsewhere": {}}, agent_session_id="a")
    assert kept.memory == AgentMemory(session_id="a")
    kept = replace(kept, extra=kept.with_memory(KNOWN)["extra"])
    assert kept.memory == KNOWN
    assert "elsewhere" in kept.extra
    assert replace(kept, agent_session_id="b").memory == AgentMemory(session_id="b")
    assert kept.moved_to("docker").memory == AgentMemory()
    unnamed = AgentMemory(until_ts="9.000001")
    assert unnamed.is_unnamed
    kept = replace(SESSION, **SESSION.with_memory(unnamed))
    assert kept.memory == unnamed
    assert kept.moved_to("docker").memory == AgentMemory()
    assert kept.without_memory().memory == AgentMemory()
    assert changes["agent_session_id"] == "a"

"""What an agent remembers, as the record of its thread has it."""

from dataclasses import replace

from agent_scripts.events import TurnFinished
from app.runs.testing import AgentMemory, Session, SessionId, Thread
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
    """Of another session and at another provider there is none."""
    kept = replace(SESSION, agent_session_id="a")
    assert kept.memory == AgentMemory(session_id="a")
    kept = replace(kept, heard_until=KNOWN.until_ts)
    assert kept.memory == KNOWN
    assert kept.moved_to("docker").memory == AgentMemory()
    kept = replace(SESSION, heard_until="9.000001")
    assert kept.memory == AgentMemory(until_ts="9.000001")
    assert kept.memory.is_unnamed
    assert kept.moved_to("docker").memory == AgentMemory()
    assert kept.without_memory().memory == AgentMemory()

"""What an agent remembers of its thread by itself; pure."""

from dataclasses import dataclass

from agent_scripts.events import TurnFinished
from app.runs.history import ts_key


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentMemory:
    """It lies among the thread's files, and is worth no more than those that were saved."""

    session_id: str = ""
    """By which the agent finds it; empty = there is none, or it told no id that it could have."""
    until_ts: str = ""
    """Of the newest question that is in it; what was said since is not. Empty = nobody knows, so all may be missing."""

    @property
    def is_unnamed(self) -> bool:
        """There is one, in which only the agent's own "continue the newest" finds the way."""
        return bool(self.until_ts) and not self.session_id

    def after(self, finished: TurnFinished, *, message_ts: str) -> "AgentMemory":
        """Once it holds the turn of that question, too. A session of another id is a new one: it was told what came before."""
        told = finished.agent_session_id or self.session_id
        # A question that is tried again may be older than others that were answered since.
        is_older = told == self.session_id and ts_key(message_ts) < ts_key(self.until_ts)
        return AgentMemory(session_id=told, until_ts=self.until_ts if is_older else message_ts)

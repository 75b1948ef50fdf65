"""One model call while it passes through, and what it is counted as: nothing that was answered is free because nobody counted it."""

from dataclasses import dataclass, replace
from datetime import datetime

from app.brokerage.admission import CLIENT_GONE
from app.brokerage.usage import BYTES_PER_TOKEN, UsageReader
from app.runs.model import ModelCall, Usage


@dataclass(slots=True, kw_only=True)
class PassingCall:
    model: str
    started_at: datetime
    status: int
    reader: UsageReader
    asked_bytes: int
    has_output: bool
    """Otherwise tokens are counted only, which costs nothing."""
    first_token_at: datetime | None = None
    error: str = ""
    """Why it broke off."""
    is_whole: bool = False
    """Its answer came to its end, and was taken."""

    def usage(self) -> Usage:
        """What was counted; of an answer that broke off, or whose provider tells no counts, what can be guessed."""
        counted = self.reader.finish()
        # Some providers tell the counts in their last event alone, some never: an agent could read all but that.
        cached = counted.cache_read_tokens + counted.cache_creation_tokens
        is_told = bool(counted.input_tokens or cached) and self.reader.is_sure
        if not self._is_paid or (is_told and self.is_whole):
            return counted
        asked = 0 if is_told else self.asked_bytes // BYTES_PER_TOKEN - cached
        answered = self.reader.guess_output_tokens(is_whole=self.is_whole)
        return replace(
            counted,
            input_tokens=max(counted.input_tokens, asked),
            output_tokens=max(counted.output_tokens, answered),
        )

    def ended(self, at: datetime) -> ModelCall:
        """For whoever keeps count of calls."""
        usage = self.usage()
        return ModelCall(
            model=self.model,
            started_at=self.started_at,
            first_token_at=self.first_token_at,
            ended_at=at,
            status=self.status,
            usage=usage,
            error=self.error or self.reader.error,
        )

    @property
    def _is_paid(self) -> bool:
        """The model began to work: not one that failed before its first word, whatever the status says."""
        if not self.has_output or (self.reader.error and not self.reader.has_started):
            return False
        return 200 <= self.status < 300 or self.status == CLIENT_GONE  # noqa: PLR2004 - HTTP's own

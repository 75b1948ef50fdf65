"""The text of a turn as it comes: pieces in order, a blank line between messages, and which of it is the answer. Pure."""

from collections.abc import Iterator

from agent_scripts.events import TextDelta


class AnswerText:
    """Grows with the text alone, which the supervisor's limit of output bounds."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._begin = 0
        """Index of the first piece of the message that is being written."""

    def begin_message(self) -> None:
        """What comes from now on is a message of its own; the answer is the last one with text in it."""
        self._begin = len(self._pieces)

    def write(self, text: str) -> Iterator[TextDelta]:
        """The piece as an event, behind a blank line where a new message needs one."""
        if not text:
            return
        is_first = self._begin == len(self._pieces)
        if is_first and self._pieces and not self._pieces[-1].endswith("\n\n"):
            self._pieces.append("\n\n")
            yield TextDelta(text="\n\n")
            self._begin = len(self._pieces)
        self._pieces.append(text)
        yield TextDelta(text=text)

    @property
    def message(self) -> str:
        """The message that is being written; empty while it has no text."""
        return "".join(self._pieces[self._begin :]).strip()

    @property
    def whole(self) -> str:
        """Everything since the turn's begin."""
        return "".join(self._pieces).strip()

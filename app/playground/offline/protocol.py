"""What each protocol of the offline model must be able to say."""

from collections.abc import Mapping
from typing import Any, Protocol

from app.playground.offline.answers import Shape
from app.playground.offline.question import Question, RequestError
from app.playground.offline.reply import Reply
from app.playground.offline.streaming import Stream


class ModelProtocol(Protocol):
    """Pure: bodies and headers in, bodies out."""

    @property
    def request_id_header(self) -> str:
        """Of answers; empty = there is none."""
        ...

    @property
    def stream_type(self) -> str:
        """Media type."""
        ...

    @property
    def garbage(self) -> bytes:
        """What a gateway might send in the place of a stream."""
        ...

    def read(self, headers: Mapping[str, str], body: object) -> Question:
        """The question in a request.

        Raises:
            RequestError: the API would refuse it.
        """
        ...

    def failure(self, question: Question, shape: Shape) -> RequestError | None:
        """How the API says this; None when it is no refusal."""
        ...

    def error(self, problem: RequestError, request_id: str) -> dict[str, Any]:
        """The body of a refusal."""
        ...

    def plain(self, question: Question, reply: Reply) -> dict[str, Any]:
        """The whole answer."""
        ...

    def stream(self, question: Question, reply: Reply, shape: Shape) -> Stream:
        """The same as events."""
        ...

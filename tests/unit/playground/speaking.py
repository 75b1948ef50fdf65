"""How agents talk with the offline model, whatever the protocol."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message of a conversation."""

    role: str
    """`user`, `assistant`, `call` or `result`."""
    text: str = ""
    call: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """An answer."""

    text: str = ""
    call: JsonObject | None = None
    """As the protocol has it, to be sent back."""
    name: str = ""
    arguments: JsonObject | str = ""
    stop: str = ""
    usage: JsonObject = field(default_factory=dict)


class Speech(Protocol):
    """One protocol, as a client speaks it."""

    name: str
    headers: dict[str, str]
    kinds: dict[str, str]
    """How it names failures, by directive."""

    def url(self, *, is_stream: bool) -> str: ...

    def body(
        self, turns: Sequence[Turn], *, is_stream: bool = False, limit: int | None = None
    ) -> JsonObject: ...

    def plain(self, body: JsonObject) -> Heard: ...

    def streamed(self, text: str) -> Heard: ...

    def kind(self, body: JsonObject) -> str:
        """Of a refusal."""
        ...


def turns_of(*texts: str) -> list[Turn]:
    """Texts of a person and of the model in turn."""
    roles = ("user", "assistant")
    return [Turn(role=roles[index % 2], text=text) for index, text in enumerate(texts)]


def data_lines(text: str) -> list[JsonObject]:
    """The events of a stream."""
    lines = [line for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]


@dataclass
class Model:
    http: httpx.AsyncClient
    slept: list[float] = field(default_factory=list)

    async def send(
        self, speech: Speech, body: dict[str, Any], *, is_stream: bool = False
    ) -> httpx.Response:
        url = speech.url(is_stream=is_stream)
        return await self.http.post(url, json=body, headers=speech.headers)

    async def ask(
        self, speech: Speech, *turns: Turn, is_stream: bool = False, limit: int | None = None
    ) -> Heard:
        body = speech.body(turns, is_stream=is_stream, limit=limit)
        response = await self.send(speech, body, is_stream=is_stream)
        assert response.status_code == 200, response.text
        return speech.streamed(response.text) if is_stream else speech.plain(response.json())

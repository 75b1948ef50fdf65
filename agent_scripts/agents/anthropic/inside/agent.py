"""One turn on the Anthropic API, with tools, inside the sandbox.

Usage: `python agent.py REQUEST.json`, with ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY in the environment; with `--wait`
instead it loads everything and waits for these (`preload.py`). Prints one JSON object a line, of type text, tool_started,
tool_finished, heard, usage, alive, server_broken, and at the end either final (exit 0) or error (exit 1) with a code of
`agent_scripts.events.AgentErrorCode`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))  # files keep their package layout

from agent_scripts.agents.anthropic.inside import tools
from agent_scripts.agents.anthropic.inside.lazy_sdk import anthropic
from agent_scripts.agents.anthropic.inside.mcp_servers import McpTools, open_servers
from agent_scripts.inside.messages import ToldMessages, blocks_of, clean
from agent_scripts.inside.preload import WAIT, wait_for_task

_WARM_UP_S = 10
_USAGE = {"input_tokens": 1, "output_tokens": 1}
_MESSAGE: dict[str, Any] = {
    "id": "msg_warm_up",
    "type": "message",
    "role": "assistant",
    "model": "warm-up",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": _USAGE,
}
_EVENTS = (
    {"type": "message_start", "message": _MESSAGE},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
    {"type": "content_block_stop", "index": 0},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": _USAGE,
    },
    {"type": "message_stop"},
)
"""Source: Anthropic Messages API, "Streaming messages", read 2026-11."""


def warm_up() -> None:
    """Makes one model call over loopback, so that what the SDK loads and builds on its first is there.

    A failure is no reason not to work: the real call will say what is wrong.
    """
    with contextlib.suppress(anthropic.APIError, OSError, TimeoutError):
        asyncio.run(_call_own_server())


async def _call_own_server() -> None:
    async with asyncio.timeout(_WARM_UP_S):
        server = await asyncio.start_server(_answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            async with (
                anthropic.AsyncAnthropic(
                    api_key="none", base_url=f"http://127.0.0.1:{port}", max_retries=0
                ) as client,
                client.messages.stream(
                    model="warm-up", max_tokens=1, messages=[{"role": "user", "content": "a"}]
                ) as stream,
            ):
                await stream.get_final_message()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    body = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in _EVENTS)
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"
        + f"content-length: {len(body)}\r\n\r\n{body}".encode()
    )
    with contextlib.suppress(OSError):
        await writer.drain()
        writer.close()
        await writer.wait_closed()


_MAX_RETRIES = 2
_CONNECT_TIMEOUT_S = 10
_OPEN_TIMEOUT_S = 150
"""Until the first byte of an answer, all retries and a server's `retry-after` included."""
_LOOK_S = 0.2
"""Between two looks for a message while the model writes."""
_ALIVE_S = 15
"""A line at the start, and then that often, shows the supervisor that the script waits for the model or a tool and does not hang."""

# Source: anthropic 2.12.0, types/shared/error_type.py and _exceptions.py, read 2026-11.
_CODE_OF_STATUS = {
    401: "model_auth_failed",
    402: "model_billing",
    403: "model_auth_failed",
    404: "model_not_found",
    413: "model_context_exceeded",
    429: "model_rate_limited",
    529: "model_overloaded",
}
_CODE_OF_TYPE = {
    "authentication_error": "model_auth_failed",
    "permission_error": "model_auth_failed",
    "billing_error": "model_billing",
    "not_found_error": "model_not_found",
    "request_too_large": "model_context_exceeded",
    "rate_limit_error": "model_rate_limited",
    "overloaded_error": "model_overloaded",
    "timeout_error": "model_unavailable",
    "api_error": "model_unavailable",
}
_CODE_OF_STOP = {
    "refusal": "model_refused",
    "model_context_window_exceeded": "model_context_exceeded",
}
# Source: Anthropic Messages API, "Errors" and context windows, read 2026-11; there is no error type of its own.
_PROMPT_TOO_LONG = "prompt is too long"


class TurnError(Exception):
    """The turn cannot be answered."""

    def __init__(self, code: str, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


class BrokenStreamError(TurnError):
    """The stream began and failed before its end."""


class Turn:
    """The conversation of one turn, from the request to the final text."""

    def __init__(
        self,
        request: dict[str, Any],
        *,
        client: anthropic.AsyncAnthropic,
        limits: tools.ToolLimits,
        servers: McpTools,
    ) -> None:
        self._request = request
        self._servers = servers
        self._client = client
        self._limits = limits
        self._messages: list[dict[str, Any]] = [
            {"role": message["role"], "content": blocks_of(message)}
            for message in request["messages"]
        ]
        self._written_chars = 0
        self._incoming = ToldMessages(request["told_path"])
        self._told: list[dict[str, Any]] = []
        """What was said while it works, and is in no request yet."""
        self._looked_s = 0.0

    async def run(self) -> str:
        """Returns the text of the last assistant turn. Raises: TurnError: the model or a limit ended the turn without an answer."""
        paused = ""
        for _ in range(self._request["max_turns"]):
            message = await self._call_model()
            text = paused + "".join(block.text for block in message.content if block.type == "text")
            code = _CODE_OF_STOP.get(str(message.stop_reason))
            if code is not None:
                raise TurnError(code, f"the answer ended with stop_reason {message.stop_reason}")
            results = await self._use_tools(message)
            heard = [] if message.stop_reason == "pause_turn" else self._hear()
            if not heard and message.stop_reason not in {"tool_use", "pause_turn"}:
                return text + self._cut_note(message.stop_reason)
            paused = text if message.stop_reason == "pause_turn" else ""
            self._add("assistant", _sendable(message))
            self._add("user", [*results, *heard])
        raise TurnError("turn_limit", f"no answer after {self._request['max_turns']} model calls")

    def _add(self, role: str, content: list[dict[str, Any]]) -> None:
        """Adds to the conversation; a message has content, and is followed by one of the other role."""
        if content and self._messages[-1]["role"] == role:
            self._messages[-1]["content"] += content
        elif content:
            self._messages.append({"role": role, "content": content})

    async def _call_model(self) -> anthropic.types.Message:
        """Makes one model call. A stream that breaks before its first word is asked for again, which the SDK does not do."""
        for retry in range(_MAX_RETRIES):
            written = self._written_chars
            try:
                return await self._stream_message()
            except BrokenStreamError:
                if self._written_chars > written:
                    raise
            await asyncio.sleep(2**retry)
        return await self._stream_message()

    async def _stream_message(self) -> anthropic.types.Message:
        request = self._request
        parameters: dict[str, Any] = {
            "model": request["model"],
            "max_tokens": request["max_tokens"],
            "messages": _with_cache_mark(self._messages),
            "tools": [*tools.TOOLS, *self._servers.definitions],
        }
        if request["system"].strip():
            system = {
                "type": "text",
                "text": clean(request["system"]),
                "cache_control": {"type": "ephemeral"},
            }
            parameters["system"] = [system]
        separator = "\n\n" if self._written_chars else ""
        is_started = False
        loop = asyncio.get_running_loop()
        with _mapped_errors():
            async with (
                asyncio.timeout(_OPEN_TIMEOUT_S) as silence,
                self._client.messages.stream(**parameters) as stream,
            ):
                async for event in stream:
                    is_started = True
                    silence.reschedule(loop.time() + request["silence_timeout_s"])
                    if event.type == "text" and event.text:
                        emit("text", text=separator + event.text)
                        separator = ""
                        self._written_chars += len(event.text)
                    if self._is_told(loop.time()):
                        break
                message: anthropic.types.Message | None = None
                if self._told:
                    message = _so_far(stream.current_message_snapshot)
                elif is_started:
                    message = await stream.get_final_message()
        if message is None or message.stop_reason is None:
            raise BrokenStreamError("model_unavailable", "the stream ended before the message")
        usage = message.usage
        emit(
            "usage",
            model=message.model,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cache_read_input_tokens or 0,
            cache_creation_tokens=usage.cache_creation_input_tokens or 0,
        )
        return message

    def _is_told(self, now_s: float) -> bool:
        """Whether something was said while the model writes, which then breaks off; looks a few times a second."""
        if now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            self._listen()
        return bool(self._told)

    def _hear(self) -> list[dict[str, Any]]:
        """Returns what was said since the last step, as blocks."""
        self._listen()
        told, self._told = self._told, []
        return told

    def _listen(self) -> None:
        for message_id, text in self._incoming.new():
            self._told.append({"type": "text", "text": text})
            emit("heard", id=message_id)

    async def _use_tools(self, message: anthropic.types.Message) -> list[dict[str, Any]]:
        """Returns a result for each call of a tool, none where the message has not stopped for them."""
        results: list[dict[str, Any]] = []
        for block in message.content:
            if block.type != "tool_use" or message.stop_reason != "tool_use":
                continue
            emit(
                "tool_started", id=block.id, name=block.name, argument=_shown_argument(block.input)
            )
            output, is_error = await self._use_tool(block.name, block.input)
            size = len((output if isinstance(output, str) else json.dumps(output)).encode())
            emit("tool_finished", id=block.id, is_error=is_error, output_bytes=size)
            results.append(
                {
                    "type": "tool_result",
                    "tool_use_id": block.id,
                    "content": output or "[no output]",
                    "is_error": is_error,
                }
            )
        return results

    async def _use_tool(self, name: str, arguments: object) -> tuple[Any, bool]:
        """Returns what a tool gave back, as a result's content, and whether it is an error."""
        if self._servers.knows(name):
            return await self._servers.call(name, arguments)
        return await asyncio.to_thread(tools.run_tool, name, arguments, self._limits)

    def _cut_note(self, stop_reason: str | None) -> str:
        if stop_reason != "max_tokens":
            return ""
        return f"\n\n[The answer ends here: it reached the limit of {self._request['max_tokens']} output tokens.]"


def classify(exc: anthropic.APIError) -> TurnError:
    """Returns an error of the SDK as ours. Errors in mid-stream carry status 200 and are told by their type."""
    if not isinstance(exc, anthropic.APIStatusError):
        return TurnError("model_unavailable", exc.message)
    status = exc.status_code
    code = _CODE_OF_STATUS.get(status) or _CODE_OF_TYPE.get(str(exc.type))
    if exc.response.is_server_error and status not in _CODE_OF_STATUS:
        code = "model_unavailable"
    if code is None and _PROMPT_TOO_LONG in (exc.api_message or exc.message):
        code = "model_context_exceeded"
    kind = BrokenStreamError if exc.response.is_success else TurnError
    return kind(code or "execution_failed", exc.message, status=status)


@contextmanager
def _mapped_errors() -> Iterator[None]:
    try:
        yield
    except anthropic.APIError as exc:
        raise classify(exc) from exc
    except TimeoutError as exc:
        raise TurnError("model_unavailable", "the model fell silent") from exc
    except (httpx2.HTTPError, json.JSONDecodeError) as exc:
        words = f"the stream broke: {type(exc).__name__}"
        raise BrokenStreamError("model_unavailable", words) from exc


def emit(kind: str, **fields: object) -> None:
    """Prints one event."""
    print(json.dumps({"type": kind, **fields}), flush=True)


def _with_cache_mark(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Asks for a cache entry up to the newest message: the next call of this turn starts with the same text."""
    *earlier, last = messages
    *blocks, newest = last["content"]
    marked = {**newest, "cache_control": {"type": "ephemeral"}}
    return [*earlier, {**last, "content": [*blocks, marked]}]


def _sendable(message: anthropic.types.Message) -> list[dict[str, Any]]:
    """Returns the message's blocks as the API takes them back: it refuses blank text blocks."""
    blocks = [block.to_dict(mode="json", warnings=False) for block in message.content]
    return [block for block in blocks if block["type"] != "text" or str(block["text"]).strip()]


def _so_far(message: anthropic.types.Message) -> anthropic.types.Message:
    """Returns a message that was broken off: its text, without the call of a tool that was not written to its end."""
    text = [block for block in message.content if block.type == "text"]
    return message.model_copy(update={"content": text, "stop_reason": "end_turn"})


def _shown_argument(arguments: object) -> str:
    if not isinstance(arguments, dict):
        return ""
    shown = arguments.get("command")
    if not shown and "action" in arguments:
        shown = f"{arguments['action']} {arguments.get('path', '')}"
    return str(shown or json.dumps(arguments, ensure_ascii=False))[:2000]


async def _tell_alive() -> None:
    while True:
        emit("alive")
        await asyncio.sleep(_ALIVE_S)


def _servers_of(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the MCP servers of the turn."""
    path = request["servers_path"]
    servers: list[dict[str, Any]] = json.loads(Path(path).read_text("utf-8")) if path else []
    return servers


async def answer(
    request: dict[str, Any],
    *,
    api_key: str,
    base_url: str,
    http: anthropic.DefaultAsyncHttpxClient | None,
) -> int:
    """Prints the events of the turn; returns the exit code. `http` is closed at its end."""
    limits = tools.ToolLimits(
        work=request["work"],
        timeout_s=request["tool_timeout_s"],
        output_bytes=request["tool_output_bytes"],
        secret=api_key,
    )
    timeout = anthropic.Timeout(request["silence_timeout_s"], connect=_CONNECT_TIMEOUT_S)
    async with (
        anthropic.AsyncAnthropic(
            api_key=api_key,
            base_url=base_url,
            timeout=timeout,
            max_retries=_MAX_RETRIES,
            http_client=http,
        ) as client,
        asyncio.TaskGroup() as tasks,
    ):
        alive = tasks.create_task(_tell_alive())
        try:
            async with open_servers(
                _servers_of(request),
                token=api_key,
                work=request["work"],
                output_bytes=request["tool_output_bytes"],
                on_broken=lambda name, reason: emit("server_broken", name=name, reason=reason),
            ) as servers:
                turn = Turn(request, client=client, limits=limits, servers=servers)
                emit("final", text=await turn.run())
        except TurnError as exc:
            emit("error", code=exc.code, message=str(exc), status=exc.status)
            return 1
        finally:
            alive.cancel()
    return 0


def main() -> int:
    """Answers the request named on the command line."""
    http = None
    if sys.argv[1] == WAIT:
        warm_up()
        http = anthropic.DefaultAsyncHttpxClient()  # reads certificates: 20 ms
        wait_for_task()
    request = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    key, url = os.environ["ANTHROPIC_API_KEY"], os.environ["ANTHROPIC_BASE_URL"]
    return asyncio.run(answer(request, api_key=key, base_url=url, http=http))


if __name__ == "__main__":
    exit_code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is closed: tearing down the SDK's 3,000 modules would only let the person wait a moment longer.
    os._exit(exit_code)

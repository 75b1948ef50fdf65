"""MCP servers of one tool that Orion itself is: by one an agent asks people in mid-run, by another it hears that its person has no account.

Without sessions and streams: each request is answered by itself.

Source: Model Context Protocol 2025-06-18, "Transports", Streamable HTTP, and "Tools", read 2026-11.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from fastapi import Response
from fastapi.responses import JSONResponse

from app.approvals.questions import SERVER, TOOL_DEFINITION, read_question
from app.log import get_logger
from app.runs.broker import AskPerson, NotApprovedError, StillWaitingError

VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26")
"""Of the protocol, the newest first; they do not differ in what is answered here."""
INVALID, NO_METHOD, BAD_PARAMS = -32600, -32601, -32602
"""Source: JSON-RPC 2.0, 5.1."""
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTool:
    """The one tool of a server."""

    server: str
    definition: Mapping[str, Any]
    call: Callable[[object], Awaitable[Mapping[str, Any]]]
    """Takes its arguments, as they came; returns the result of the call."""

    @property
    def name(self) -> str:
        return str(self.definition["name"])


def asking_tool(ask: AskPerson) -> OwnTool:
    """Returns the tool by which an agent asks people."""
    return OwnTool(server=SERVER, definition=TOOL_DEFINITION, call=partial(_ask, ask))


def linking_tool(server: str) -> OwnTool:
    """Returns what stands in for a server at which the person has no account: it says how they link one."""
    how = f"The person who asked has linked no account at {server}: they do so by writing `/orion link {server}` in Slack, and then ask again."
    definition = {
        "name": "how_to_link",
        "description": f"{how} Until then {server} has no other tools. Tell them, if what they want needs it; you need not call this.",
        "inputSchema": {"type": "object", "properties": {}},
    }

    async def call(_arguments: object) -> Mapping[str, Any]:
        return _result(how)

    return OwnTool(server=server, definition=definition, call=call)


async def answer_request(method: str, messages: Sequence[object], tool: OwnTool) -> Response:
    """Answers an HTTP request of an agent's client with these JSON-RPC messages."""
    if method != "POST":
        return Response(status_code=405, headers={"Allow": "POST"})
    message = messages[0] if len(messages) == 1 else None
    if not isinstance(message, dict) or not isinstance(message.get("method"), str):
        return JSONResponse(_error(None, INVALID, "one message at a time, please"), status_code=400)
    if "id" not in message:  # a notification
        return Response(status_code=202)
    params = message.get("params")
    found = await _answer(message["method"], params if isinstance(params, dict) else {}, tool)
    return JSONResponse({"jsonrpc": "2.0", "id": message["id"], **found})


async def _answer(method: str, params: Mapping[str, Any], tool: OwnTool) -> Mapping[str, Any]:
    match method:
        case "initialize":
            wanted = params.get("protocolVersion")
            return {
                "result": {
                    "protocolVersion": wanted if wanted in VERSIONS else VERSIONS[0],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": tool.server, "version": "1"},
                }
            }
        case "ping":
            return {"result": {}}
        case "tools/list":
            return {"result": {"tools": [tool.definition]}}
        case "tools/call" if params.get("name") == tool.name:
            return {"result": await tool.call(params.get("arguments"))}
        case "tools/call":
            return _failure(BAD_PARAMS, f"there is one tool, {tool.name}")
        case _:
            return _failure(NO_METHOD, "there is no such method")


async def _ask(ask: AskPerson, arguments: object) -> Mapping[str, Any]:
    """Returns the tool's result; whatever went wrong is told to the model. Source: as above, "Error Handling"."""
    is_error = False
    try:
        text = await ask(read_question(arguments))
    except StillWaitingError as exc:
        text = f"{exc}."
    except (ValueError, NotApprovedError) as exc:
        text, is_error = f"Not asked: {exc}.", isinstance(exc, ValueError)
    except OSError as exc:
        _log.warning("broker.unasked", reason=str(exc))
        text, is_error = "Not asked: nobody can be asked now. Try again in a minute.", True
    return _result(text, is_error=is_error)


def _result(text: str, *, is_error: bool = False) -> Mapping[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


def _failure(code: int, message: str) -> Mapping[str, Any]:
    return {"error": {"code": code, "message": message}}


def _error(message_id: object, code: int, message: str) -> Mapping[str, Any]:
    return {"jsonrpc": "2.0", "id": message_id, **_failure(code, message)}

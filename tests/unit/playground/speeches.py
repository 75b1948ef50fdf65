"""The protocols of OpenAI and Google, as agents speak them.

The shapes are those that Codex 0.169.0, OpenCode 1.18.33, Copilot CLI 1.0.102 and Gemini CLI 0.61.0 sent on 2026-11-22,
without their long prompts.
"""

import json
from collections.abc import Sequence

from tests.unit.playground.speaking import Heard, JsonObject, Speech, Turn, data_lines

_STRING = {"type": "string"}


class Responses:
    """As Codex."""

    name = "responses"
    headers = {"authorization": "Bearer k"}  # noqa: RUF012 - never changed
    kinds = {  # noqa: RUF012 - never changed
        "!429": "429 rate_limit_exceeded",
        "!529": "503 server_is_overloaded",
        "!500": "500 server_error",
        "!context": "400 context_length_exceeded",
    }
    tools = (
        {
            "type": "function",
            "name": "exec_command",
            "parameters": {"properties": {"cmd": _STRING}},
        },
        {
            "type": "namespace",
            "name": "mcp__notes",
            "tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}}],
        },
        {"type": "web_search", "external_web_access": True},
    )

    def url(self, *, is_stream: bool) -> str:
        del is_stream
        return "/v1/responses"

    def body(
        self, turns: Sequence[Turn], *, is_stream: bool = False, limit: int | None = None
    ) -> JsonObject:
        context = "<environment_context>\n  <cwd>/w</cwd>\n</environment_context>"
        items: list[JsonObject] = [_item("developer", "You are Codex."), _item("user", context)]
        for turn in turns:
            match turn.role:
                case "call":
                    items.append(turn.call)
                case "result":
                    kind = turn.call["type"] + "_output"
                    call_id = turn.call["call_id"]
                    items.append({"type": kind, "call_id": call_id, "output": turn.text})
                case role:
                    items.append(_item(role, turn.text))
        body: JsonObject = {"model": "gpt-5.4", "input": items, "tools": list(self.tools)}
        body |= {"stream": is_stream, "store": False, "include": ["reasoning.encrypted_content"]}
        return body | ({"max_output_tokens": limit} if limit else {})

    def plain(self, body: JsonObject) -> Heard:
        heard = Heard(stop=body["status"], usage=body["usage"])
        text, call, name, arguments = "", None, "", ""
        for item in body["output"]:
            if item["type"] == "message":
                part = item["content"][0]
                text += part.get("text") or part["refusal"]
            else:
                call, name = item, f"{item.get('namespace', '')} {item['name']}".strip()
                arguments = json.loads(item["arguments"]) if "arguments" in item else item["input"]
        return Heard(
            text=text, call=call, name=name, arguments=arguments, stop=heard.stop, usage=heard.usage
        )

    def streamed(self, text: str) -> Heard:
        events = data_lines(text)
        numbers = [event["sequence_number"] for event in events]
        assert numbers == list(range(len(events)))
        assert [event["type"] for event in events[:2]] == [
            "response.created",
            "response.in_progress",
        ]
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        whole = events[-1]["response"]
        assert done == whole["output"]
        heard = self.plain(whole)
        deltas = {"text": "", "arguments": ""}
        for event in events:
            if event["type"] in ("response.output_text.delta", "response.refusal.delta"):
                deltas["text"] += event["delta"]
            elif event["type"].endswith(".delta"):
                deltas["arguments"] += event["delta"]
        assert deltas["text"] == heard.text
        if heard.call is not None:
            assert deltas["arguments"] == heard.call.get("arguments", heard.call.get("input"))
        return heard

    def kind(self, body: JsonObject) -> str:
        return str(body["error"]["code"] or body["error"]["type"])


def _item(role: str, text: str) -> JsonObject:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


class Chat:
    """As OpenCode and Copilot."""

    name = "chat"
    headers = Responses.headers
    kinds = Responses.kinds
    tools: tuple[JsonObject, ...] = (
        {
            "type": "function",
            "function": {
                "name": "bash",
                "parameters": {"properties": {"command": _STRING, "description": _STRING}},
            },
        },
        {
            "type": "function",
            "function": {
                "name": "write",
                "parameters": {"properties": {"filePath": _STRING, "content": _STRING}},
            },
        },
    )

    def url(self, *, is_stream: bool) -> str:
        del is_stream
        return "/v1/chat/completions"

    def body(
        self, turns: Sequence[Turn], *, is_stream: bool = False, limit: int | None = None
    ) -> JsonObject:
        messages: list[JsonObject] = [{"role": "system", "content": "You are OpenCode."}]
        for turn in turns:
            match turn.role:
                case "call":
                    said = {"role": "assistant", "content": None, "tool_calls": [turn.call]}
                    messages.append(said)
                case "result":
                    call_id = turn.call["id"]
                    messages.append({"role": "tool", "tool_call_id": call_id, "content": turn.text})
                case "user":
                    at = "<current_datetime>2026-11-22T23:38:30.622+00:00</current_datetime>\n\n"
                    messages.append({"role": "user", "content": at + turn.text})
                case role:
                    messages.append({"role": role, "content": turn.text})
        body: JsonObject = {"model": "gpt-5.4", "messages": messages, "tools": list(self.tools)}
        if is_stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body | ({"max_tokens": limit} if limit else {})

    def plain(self, body: JsonObject) -> Heard:
        choice = body["choices"][0]
        return _chat_heard(choice["message"], choice["finish_reason"], body["usage"])

    def streamed(self, text: str) -> Heard:
        assert text.endswith("data: [DONE]\n\n")
        *chunks, last = data_lines(text)
        assert last["choices"] == []
        assert all(chunk["usage"] is None for chunk in chunks)
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        whole: JsonObject = {
            field: "".join(delta.get(field) or "" for delta in deltas)
            for field in ("content", "refusal")
        }
        parts = [part for delta in deltas for part in delta.get("tool_calls", ())]
        if parts:
            kind = parts[0]["type"]
            field_ = "arguments" if kind == "function" else "input"
            given = "".join(part[kind][field_] for part in parts)
            call = {name: value for name, value in parts[0].items() if name != "index"}
            whole["tool_calls"] = [call | {kind: call[kind] | {field_: given}}]
        return _chat_heard(whole, chunks[-1]["choices"][0]["finish_reason"], last["usage"])

    def kind(self, body: JsonObject) -> str:
        return Responses().kind(body)


def _chat_heard(message: JsonObject, stop: str, usage: JsonObject) -> Heard:
    calls = message.get("tool_calls") or [None]
    call = calls[0]
    function = call[call["type"]] if call else {}
    arguments = function.get("input", "")
    return Heard(
        text=message.get("content") or message.get("refusal") or "",
        call=call,
        name=function.get("name", ""),
        arguments=json.loads(function["arguments"]) if "arguments" in function else arguments,
        stop=stop,
        usage=usage,
    )


class Gemini:
    """As Gemini CLI."""

    name = "gemini"
    headers = {"x-goog-api-key": "k"}  # noqa: RUF012 - never changed
    kinds = {  # noqa: RUF012 - never changed
        "!429": "429 RESOURCE_EXHAUSTED",
        "!529": "503 UNAVAILABLE",
        "!500": "500 INTERNAL",
        "!context": "400 INVALID_ARGUMENT",
    }

    def url(self, *, is_stream: bool) -> str:
        method = "streamGenerateContent?alt=sse" if is_stream else "generateContent"
        return f"/v1beta/models/gemini-2.5-pro:{method}"

    def body(
        self, turns: Sequence[Turn], *, is_stream: bool = False, limit: int | None = None
    ) -> JsonObject:
        del is_stream
        context = "<session_context>\nThis is the Gemini CLI.\n</session_context>"
        contents: list[JsonObject] = []
        for turn in turns:
            match turn.role:
                case "call":
                    contents.append({"role": "model", "parts": [turn.call]})
                case "result":
                    name = turn.call["functionCall"]["name"]
                    given = {"name": name, "response": {"output": turn.text}}
                    contents.append({"role": "user", "parts": [{"functionResponse": given}]})
                case role:
                    own = "model" if role == "assistant" else "user"
                    contents.append({"role": own, "parts": [{"text": turn.text}]})
        contents[0]["parts"].insert(0, {"text": context})
        functions = [
            {
                "name": name,
                "parametersJsonSchema": {"properties": dict.fromkeys(fields, _STRING)},
            }
            for name, fields in (
                ("run_shell_command", ("command", "description")),
                ("write_file", ("file_path", "content")),
            )
        ]
        body: JsonObject = {
            "contents": contents,
            "systemInstruction": {"role": "user", "parts": [{"text": "You are Gemini CLI."}]},
            "tools": [{"functionDeclarations": functions}],
            "generationConfig": {"temperature": 1, "thinkingConfig": {"includeThoughts": True}},
        }
        if limit:
            body["generationConfig"]["maxOutputTokens"] = limit
        return body

    def plain(self, body: JsonObject) -> Heard:
        return self._heard([body])

    def streamed(self, text: str) -> Heard:
        chunks = data_lines(text)
        assert all("finishReason" not in chunk["candidates"][0] for chunk in chunks[:-1])
        assert len({chunk["responseId"] for chunk in chunks}) == 1
        return self._heard(chunks)

    def _heard(self, chunks: list[JsonObject]) -> Heard:
        parts = [part for chunk in chunks for part in chunk["candidates"][0]["content"]["parts"]]
        calls = [part for part in parts if "functionCall" in part] or [None]
        function = calls[0]["functionCall"] if calls[0] else {"name": "", "args": ""}
        return Heard(
            text="".join(part.get("text", "") for part in parts),
            call=calls[0],
            name=function["name"],
            arguments=function["args"],
            stop=chunks[-1]["candidates"][0]["finishReason"],
            usage=chunks[-1]["usageMetadata"],
        )

    def kind(self, body: JsonObject) -> str:
        assert body["error"]["code"]
        return str(body["error"]["status"])


RESPONSES, CHAT, GEMINI = Responses(), Chat(), Gemini()
SPEECHES: tuple[Speech, ...] = (RESPONSES, CHAT, GEMINI)

"""Requests of the CLIs, as they were recorded on 2026-11-22, without their long texts and most of their tools."""

from typing import Any

_SCHEMA = {"type": "object", "properties": {"file_id": {"type": "string"}}}
FUNCTION = {"type": "function", "name": "exec_command", "strict": False, "parameters": _SCHEMA}
SEARCH = {"type": "web_search", "external_web_access": True}
_PNG = "data:image/png;base64,iVBORw0KGgo="

# As Codex 0.169.0 sent it, without its long texts.
CODEX: dict[str, Any] = {
    "model": "gpt-5.4",
    "stream": True,
    "input": [
        {
            "type": "message",
            "id": "msg_1",
            "role": "developer",
            "content": [{"type": "input_text", "text": "You are"}],
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "t"}],
            "encrypted_content": "x",
        },
        {"type": "function_call", "name": "exec_command", "arguments": "{}", "call_id": "c1"},
        {"type": "function_call_output", "call_id": "c1", "output": "out"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_image", "image_url": _PNG}],
        },
    ],
    "tools": [
        FUNCTION,
        {"type": "namespace", "name": "mcp__a", "description": "d", "tools": [FUNCTION]},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
        SEARCH,
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a2",
    "client_metadata": {"session_id": "01a2"},
    "service_tier": None,
}
# As OpenCode 1.18.33 and Copilot CLI 1.0.102 sent them.
OPENCODE: dict[str, Any] = {
    "model": "gpt-5.4",
    "max_tokens": 8192,
    "reasoning_effort": "medium",
    "messages": [
        {"role": "system", "content": "You are"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": _PNG}}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "out"},
    ],
    "tools": [{"type": "function", "function": {"name": "bash", "parameters": _SCHEMA}}],
    "tool_choice": "auto",
    "stream": True,
    "stream_options": {"include_usage": True},
}
COPILOT: dict[str, Any] = {
    "model": "gpt-5.4",
    "messages": [{"role": "user", "content": "hi"}],
    "reasoning_effort": "medium",
    "temperature": 1,
    "max_tokens": 128_000,
    "tools": [{"type": "custom", "custom": {"name": "apply_patch", "format": {}}}],
}
# As Gemini CLI 0.61.0 sent it.
GEMINI: dict[str, Any] = {
    "contents": [
        {"role": "user", "parts": [{"text": "hi"}, {"inlineData": {"mimeType": "image/png"}}]},
        {
            "role": "model",
            "parts": [
                {"text": "hm", "thought": True},
                {"functionCall": {"name": "f", "args": {"fileData": 1}}, "thoughtSignature": "s"},
            ],
        },
        {
            "role": "user",
            "parts": [{"functionResponse": {"name": "f", "response": {"output": "out"}}}],
        },
    ],
    "systemInstruction": {"role": "user", "parts": [{"text": "You are"}]},
    "tools": [{"functionDeclarations": [{"name": "f", "parametersJsonSchema": _SCHEMA}]}],
    "generationConfig": {
        "temperature": 1,
        "topP": 0.95,
        "topK": 64,
        "thinkingConfig": {"includeThoughts": True, "thinkingBudget": 8192},
    },
}

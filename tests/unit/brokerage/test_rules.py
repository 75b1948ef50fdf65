"""Which requests go on, by protocol: those of the CLIs as they were recorded, and none that reach further than a run may."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.brokerage.http import IncomingRequest, ModelRequest, Refusal
from app.brokerage.rules import PROTOCOLS, Check, Endpoint
from app.brokerage.rules.anthropic import read_messages_event
from app.brokerage.rules.gemini import check_content, read_content_event
from app.brokerage.rules.openai import (
    check_chat,
    check_responses,
    read_chat_event,
    read_responses_event,
)
from app.runs.testing import ModelGrant, RunId
from tests.unit.brokerage.recorded import CODEX, COPILOT, FUNCTION, GEMINI, OPENCODE, SEARCH

GRANT = ModelGrant(
    run_id=RunId("run_1"),
    models=("gpt-5.4", "gemini-2.5-pro"),
    expires_at=datetime.now(UTC) + timedelta(minutes=5),
)
PATHS: dict[Check, str] = {
    check_responses: "/v1/responses",
    check_chat: "/v1/chat/completions",
    check_content: "/v1beta/models/gemini-2.5-pro:generateContent",
}


def ask(check: Check, body: dict[str, Any]) -> ModelRequest | Refusal:
    return check(IncomingRequest(path=PATHS[check], body=json.dumps(body).encode()), GRANT)


def passed(check: Check, body: dict[str, Any]) -> dict[str, Any]:
    found = ask(check, body)
    assert isinstance(found, ModelRequest), found
    sent: dict[str, Any] = json.loads(found.body)
    return sent


@pytest.mark.parametrize(
    ("check", "body"),
    [
        (check_responses, CODEX),
        (check_chat, OPENCODE),
        (check_chat, COPILOT),
        (check_content, GEMINI),
    ],
    ids=["codex", "opencode", "copilot", "gemini"],
)
def test_what_the_clis_send_goes_on(check: Check, body: dict[str, Any]) -> None:
    """All of it, besides what runs at the provider; the size of the answer is bounded."""
    sent = passed(check, body)
    for name in set(body) - {"tools", "max_tokens", "generationConfig", "service_tier"}:
        assert sent[name] == body[name]


def test_the_search_that_codex_offers_unasked_is_left_out() -> None:
    """The model is not told of it, at any depth; the other tools stay."""
    nested = {"type": "namespace", "name": "n", "tools": [FUNCTION, SEARCH]}
    sent = passed(check_responses, CODEX | {"tools": [FUNCTION, SEARCH, nested]})
    assert sent["tools"] == [FUNCTION, nested | {"tools": [FUNCTION]}]


def test_answers_are_not_stored_and_streams_are_counted() -> None:
    """OpenAI keeps a response unless told not to, and counts a chat's stream only when asked."""
    assert passed(check_responses, {"model": "gpt-5.4", "input": "hi"})["store"] is False
    asked = {"model": "gpt-5.4", "messages": [], "stream": True, "n": 1, "service_tier": "auto"}
    sent = passed(check_chat, asked)
    assert sent["stream_options"] == {"include_usage": True}
    assert "n" not in sent
    assert "service_tier" not in sent
    kept = passed(check_chat, asked | {"stream_options": {"include_obfuscation": False}})
    assert kept["stream_options"] == {"include_obfuscation": False, "include_usage": True}


_ITEM = {"type": "message", "role": "user"}


@pytest.mark.parametrize(
    "fields",
    [
        {"previous_response_id": "resp_1"},
        {"conversation": "conv_1"},
        {"background": True},
        {"store": True},
        {"prompt": {"id": "pmpt_1"}},
        {"service_tier": "priority"},
        {"something_new": {}},
        {"max_output_tokens": "9"},
        {"include": ["file_search_call.results"]},
        {"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]},
        {"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]},
        {"tools": [{"type": "mcp", "server_url": "https://e.example"}]},
        {"tools": [{"type": "computer_use_preview"}]},
        {"tools": [{"type": "shell", "environment": {"type": "container_auto"}}]},
        {"tools": [{"type": "tool_search", "execution": "server"}]},
        {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "mcp"}]}]},
        {"tools": [{"name": "no type"}, "no tool"]},
        {"input": [{"type": "item_reference", "id": "msg_1"}]},
        {"input": [{"type": "mcp_approval_response"}]},
        {"input": [{"type": "tool_search_output", "tools": [{"type": "mcp"}]}]},
        {"input": ["text"]},
        {"input": [_ITEM | {"role": "robot"}]},
        {
            "input": [
                _ITEM | {"content": [{"type": "input_image", "image_url": "https://e.example"}]}
            ]
        },
        {"input": [_ITEM | {"content": [{"type": "input_image", "file_id": "file_1"}]}]},
        {"input": [_ITEM | {"content": [{"type": "input_file", "file_url": "https://e.example"}]}]},
        {
            "input": [
                {
                    "type": "function_call_output",
                    "call_id": "c",
                    "output": [{"type": "input_file", "file_id": "file_1"}],
                }
            ]
        },
    ],
)
def test_nothing_of_a_response_reaches_further(fields: dict[str, Any]) -> None:
    """What would be kept at the provider, fetched by it, or run there."""
    found = ask(check_responses, {"model": "gpt-5.4", "input": "hi"} | fields)
    assert isinstance(found, Refusal)
    assert found.status == 403


@pytest.mark.parametrize(
    "fields",
    [
        {"web_search_options": {}},
        {"store": True},
        {"n": 2},
        {"service_tier": "flex"},
        {"modalities": ["audio"]},
        {"functions": [{"name": "f"}]},
        {"max_tokens": 0},
        {"tools": [{"type": "web_search"}]},
        {"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]},
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image_url", "image_url": {"url": "https://e.example/a.png"}}
                    ],
                }
            ]
        },
        *(
            {"messages": [{"role": "user", "content": [part]}]}
            for part in (
                {"type": "file", "file": {"file_id": "file_1"}},
                {"type": "file", "file": {"file_data": "https://e.example/a.pdf"}},
                {"type": "file", "file": {"url": "https://e.example/a.pdf"}},
                {"type": "video_url", "video_url": {"url": "https://e.example/a"}},
                {"audio_url": {"url": "https://e.example/a"}},
                {"type": "document_url", "document_url": "https://e.example/a"},
                {"type": "input_video", "video": "https://e.example/a"},
                {"type": "image", "image": "https://e.example/a"},
            )
        ),
    ],
)
def test_nothing_of_a_chat_reaches_further(fields: dict[str, Any]) -> None:
    """The same."""
    found = ask(check_chat, {"model": "gpt-5.4", "messages": []} | fields)
    assert isinstance(found, Refusal)
    assert found.status == 403


@pytest.mark.parametrize(
    "fields",
    [
        {"cachedContent": "cachedContents/1"},
        {"cached_content": "cachedContents/1"},
        {"store": True},
        {"tools": [{"googleSearch": {}}]},
        {"tools": [{"google_search": {}}]},
        {"tools": [{"googleSearchRetrieval": {}}]},
        {"tools": [{"urlContext": {}}]},
        {"tools": [{"codeExecution": {}}]},
        {"tools": [{"fileSearch": {}}]},
        {"tools": {"urlContext": {}}},
        {"tools": [{"functionDeclarations": [], "googleSearch": {}}]},
        {"toolConfig": {"retrievalConfig": {}}},
        {"generationConfig": {"candidateCount": 2}},
        {"generationConfig": {"speechConfig": {}}},
        {"generationConfig": {"max_output_tokens": 9}},
        {"generationConfig": []},
        {"contents": [{"parts": [{"fileData": {"fileUri": "https://e.example"}}]}]},
        {"contents": [{"parts": [{"file_data": {"file_uri": "https://e.example"}}]}]},
        {"contents": {"parts": {"fileData": {}}}},
        {"contents": [{"parts": [{"executableCode": {}}]}]},
        {"contents": [{"parts": [], "unknown": 1}]},
        {"contents": [{"parts": [{"functionResponse": {"parts": [{"fileData": {}}]}}]}]},
        {"systemInstruction": {"parts": [{"fileData": {}}]}},
    ],
)
def test_nothing_of_gemini_reaches_further(fields: dict[str, Any]) -> None:
    """The same, in each spelling."""
    found = ask(check_content, GEMINI | fields)
    assert isinstance(found, Refusal)
    assert found.status == 403


def test_a_count_has_no_answer_to_bound() -> None:
    """Counting takes contents alone, and its query is the broker's own."""
    path = "/v1beta/models/gemini-2.5-pro:countTokens"
    body = json.dumps({"contents": GEMINI["contents"]}).encode()
    found = check_content(
        IncomingRequest(path=path, body=body, query={"key": "k", "alt": "x"}), GRANT
    )
    assert isinstance(found, ModelRequest)
    assert (found.path, json.loads(found.body)) == (path, {"contents": GEMINI["contents"]})


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *(
                        "model",
                        "input",
                        "messages",
                        "tools",
                        "type",
                        "content",
                        "contents",
                        "parts",
                    ),
                    *("role", "tools", "usage", "response", "choices", "error", "delta"),
                    *("generationConfig", "usageMetadata", "max_tokens", "include", "stream"),
                    *("image_url", "stream_options", "functionResponse", "toolConfig"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize(
    "endpoint",
    [endpoint for protocol in PROTOCOLS for endpoint in protocol.endpoints],
    ids=lambda endpoint: endpoint.path,
)
@given(fields=st.dictionaries(st.text(max_size=3), _JSON, max_size=2), inner=_JSON)
def test_no_json_breaks_a_rule(endpoint: Endpoint, fields: dict[str, Any], inner: object) -> None:
    """Whatever is sent or answered is judged and read, never a crash."""
    path = "/v1beta/models/gemini-2.5-pro:generateContent"
    for name in (
        *("input", "messages", "contents", "tools", "generationConfig", "usage", "error"),
        *("include", "max_tokens", "toolConfig", "stream_options", "store", "response", "choices"),
    ):
        body = {"model": "gpt-5.4", name: inner} | fields
        found = endpoint.check(IncomingRequest(path=path, body=json.dumps(body).encode()), GRANT)
        assert isinstance(found, ModelRequest | Refusal)
        assert endpoint.read_event(body) is not None


def test_a_kind_that_is_no_text_is_refused() -> None:
    """It is none that is known."""
    assert isinstance(ask(check_responses, CODEX | {"input": [{"type": []}]}), Refusal)


def test_counts_are_read_from_each_protocols_fields() -> None:
    """Cached input is apart; thoughts are output."""
    usage: dict[str, Any] = {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 60},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 5},
    }
    counts = {"input_tokens": 40, "cache_read_tokens": 60, "output_tokens": 7}
    for event in (
        {"type": "response.completed", "response": {"usage": usage}},
        {"type": "response.incomplete", "response": {"usage": usage}},
        {"object": "response", "usage": usage},
    ):
        assert read_responses_event(event).counts == counts
    chat = {
        "choices": [],
        "usage": {
            "prompt_tokens": 100,
            "completion_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 60},
        },
    }
    assert read_chat_event(chat).counts == counts
    content = {
        "candidates": [{}],
        "usageMetadata": {
            "promptTokenCount": 90,
            "toolUsePromptTokenCount": 10,
            "cachedContentTokenCount": 60,
            "candidatesTokenCount": 2,
            "thoughtsTokenCount": 5,
        },
    }
    assert read_content_event(content).counts == counts


def test_what_is_cached_for_an_hour_is_told_apart() -> None:
    """It costs more than what is cached for five minutes."""
    usage = {
        "input_tokens": 10,
        "output_tokens": 1,
        "cache_creation_input_tokens": 900,
        "cache_creation": {"ephemeral_5m_input_tokens": 300, "ephemeral_1h_input_tokens": 600},
    }
    assert read_messages_event({"type": "message", "usage": usage}).counts == {
        "input_tokens": 10,
        "output_tokens": 1,
        "cache_creation_tokens": 900,
        "cache_creation_1h_tokens": 600,
    }
    usage["cache_creation"] = None
    seen = read_messages_event({"type": "message_start", "message": {"usage": usage}})
    assert "cache_creation_1h_tokens" not in seen.counts


@pytest.mark.parametrize("kind", ["message", "message_delta"])
def test_compaction_is_counted_beside_the_answer(kind: str) -> None:
    """Whose own counts leave it out; less than these is never counted."""
    usage: dict[str, object] = {"input_tokens": 23_000, "output_tokens": 1000}
    compacted = {"type": "compaction", "input_tokens": 180_000, "output_tokens": 3500}
    for iterations, counted in (
        ([compacted, {"type": "message", **usage}], (203_000, 4500)),
        ([{"type": "message", "input_tokens": 5}], (23_000, 1000)),
        ([], (23_000, 1000)),
        (None, (23_000, 1000)),
        (["x", {"input_tokens": "y"}], (23_000, 1000)),
    ):
        event = {"type": kind, "usage": usage | {"iterations": iterations}}
        counts = read_messages_event(event).counts
        assert (counts["input_tokens"], counts["output_tokens"]) == counted

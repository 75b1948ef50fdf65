"""What the offline model refuses in the protocols of OpenAI and Google, as the real APIs do."""

import pytest

from app.playground.model.question import REVOKED
from tests.unit.playground.speaking import Model, Speech, turns_of
from tests.unit.playground.speeches import CHAT, GEMINI, RESPONSES


@pytest.fixture
def model(speaking_model: Model) -> Model:
    return speaking_model


_CALL = {"type": "function_call", "call_id": "c1", "name": "exec_command", "arguments": "{}"}
_OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "x"}
_USER = {"role": "user", "content": "hi"}
_TOOL = {"role": "tool", "tool_call_id": "c1", "content": "x"}
_CALLING = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    ],
}
_TEXT = {"role": "user", "parts": [{"text": "hi"}]}
_ASKS = {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]}
_TELLS = {"functionResponse": {"name": "f", "response": {}}}


@pytest.mark.parametrize(
    ("speech", "changes", "status", "kind"),
    [
        (RESPONSES, {"model": "claude-opus-5-5"}, 404, "model_not_found"),
        (RESPONSES, {"model": ""}, 400, "invalid_request_error"),
        (RESPONSES, {"input": []}, 400, "invalid_request_error"),
        (RESPONSES, {"input": [{"role": "robot", "content": "hi"}]}, 400, "invalid_value"),
        (RESPONSES, {"input": [{"type": "unheard_of"}]}, 400, "invalid_value"),
        (RESPONSES, {"input": [_USER, _CALL]}, 400, "invalid_request_error"),
        (RESPONSES, {"input": [_USER, _OUTPUT]}, 400, "invalid_request_error"),
        (
            RESPONSES,
            {"input": [_USER, _CALL, _OUTPUT | {"type": "custom_tool_call_output"}]},
            400,
            "invalid_request_error",
        ),
        (RESPONSES, {"max_output_tokens": 0}, 400, "integer_below_min_value"),
        (CHAT, {"model": "gemini-2.5-pro"}, 404, "model_not_found"),
        (CHAT, {"messages": []}, 400, "invalid_request_error"),
        (CHAT, {"messages": [{"role": "robot", "content": "hi"}]}, 400, "invalid_value"),
        (CHAT, {"messages": [{"role": "user", "content": None}]}, 400, "invalid_request_error"),
        (CHAT, {"messages": [_USER, _CALLING]}, 400, "invalid_request_error"),
        (CHAT, {"messages": [_USER, _CALLING, _USER]}, 400, "invalid_request_error"),
        (CHAT, {"messages": [_USER, _TOOL]}, 400, "invalid_request_error"),
        (CHAT, {"messages": [_USER, _CALLING, _TOOL, _TOOL]}, 400, "invalid_request_error"),
        (CHAT, {"stream_options": {"include_usage": True}}, 400, "invalid_request_error"),
        (GEMINI, {"contents": []}, 400, "INVALID_ARGUMENT"),
        (GEMINI, {"contents": [_TEXT | {"role": "assistant"}]}, 400, "INVALID_ARGUMENT"),
        (GEMINI, {"contents": [{"role": "user", "parts": []}]}, 400, "INVALID_ARGUMENT"),
        (GEMINI, {"contents": [_TEXT, _ASKS]}, 400, "INVALID_ARGUMENT"),
        (GEMINI, {"contents": [_TEXT, _ASKS, _TEXT]}, 400, "INVALID_ARGUMENT"),
        (
            GEMINI,
            {"contents": [_TEXT, _ASKS, {"role": "user", "parts": [_TELLS, _TELLS]}]},
            400,
            "INVALID_ARGUMENT",
        ),
        (GEMINI, {"generationConfig": {"maxOutputTokens": 0}}, 400, "INVALID_ARGUMENT"),
    ],
)
async def test_bad_requests_are_refused(
    model: Model, speech: Speech, changes: dict[str, object], status: int, kind: str
) -> None:
    """What the real API refuses is refused, so that a broken agent shows here and not only there."""
    response = await model.send(speech, speech.body(turns_of("hi")) | changes)
    assert (response.status_code, speech.kind(response.json())) == (status, kind)


async def test_keys_are_demanded(model: Model) -> None:
    """Each protocol has its own header; Google's takes the key in the query, too."""
    body = GEMINI.body(turns_of("hi"))
    for speech, status in ((RESPONSES, 401), (CHAT, 401), (GEMINI, 403)):
        url = speech.url(is_stream=False)
        assert (await model.http.post(url, json=body)).status_code == status
        wrong = {"x-api-key": "k"}
        assert (await model.http.post(url, json=body, headers=wrong)).status_code == status
    url = GEMINI.url(is_stream=False)
    assert (await model.http.post(f"{url}?key=k", json=body)).status_code == 200
    refused = await model.http.post(f"{url}?key={REVOKED}", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["details"][0]["reason"] == "API_KEY_INVALID"


async def test_gemini_has_further_methods_and_another_stream(model: Model) -> None:
    """Tokens are counted; without `alt=sse` a stream is one JSON list; what is no model or method is not found."""
    body = GEMINI.body(turns_of("!429 hello"))
    headers = GEMINI.headers
    base = "/v1beta/models/gemini-2.5-pro"
    counted = await model.http.post(f"{base}:countTokens", json=body, headers=headers)
    assert counted.json()["totalTokens"] > 50
    body = GEMINI.body(turns_of("hello"))
    listed = await model.http.post(f"{base}:streamGenerateContent", json=body, headers=headers)
    texts = [chunk["candidates"][0]["content"]["parts"][0]["text"] for chunk in listed.json()]
    assert "You wrote: “hello”" in "".join(texts)
    for path in (f"{base}:embedContent", "/v1beta/models/gpt-5.4:generateContent"):
        answer = await model.http.post(path, json=body, headers=headers)
        assert answer.status_code == 404
        assert answer.json()["error"]["status"] == "NOT_FOUND"

"""The anthropic agent against the offline model: answers, tools, failures."""

import json

import pytest

from agent_scripts.events import AgentErrorCode, ToolFinished, ToolStarted, UsageReported
from tests.agents.bench import RUN_TOKEN, Bench, request_log
from tests.long import one_of_each

pytestmark = pytest.mark.agents


async def test_plain_question_is_answered_with_history(model: Bench) -> None:
    """The answer quotes the previous turn, streams what it ends with, and reports usage."""
    turn = await model.ask("my name is Ada", "Nice to meet you, Ada.", "what is my name?")
    assert turn.finished.error is None
    assert "what is my name?" in turn.finished.text
    assert "my name is Ada" in turn.finished.text
    assert "Nice to meet you, Ada." in turn.finished.text
    assert turn.streamed == turn.finished.text
    usage = [event for event in turn.events if isinstance(event, UsageReported)]
    assert len(usage) == 1
    assert usage[0].output_tokens > 10
    assert usage[0].model == "claude-sonnet-5-5"


async def test_commands_run_in_the_work_folder_one_after_the_other(model: Bench) -> None:
    """Two `run:` lines are two tool calls whose outputs the final answer quotes."""
    turn = await model.ask("<@U1> run: echo one > a.txt; pwd\nrun: cat a.txt; exit 3")
    started = [event for event in turn.events if isinstance(event, ToolStarted)]
    finished = [event for event in turn.events if isinstance(event, ToolFinished)]
    assert [event.argument for event in started] == ["echo one > a.txt; pwd", "cat a.txt; exit 3"]
    assert [event.is_error for event in finished] == [False, True]
    assert [event.tool_id for event in started] == [event.tool_id for event in finished]
    assert str(model.work) in turn.finished.text
    assert "one\n[exit code 3]" in turn.finished.text
    assert turn.finished.text in turn.streamed
    assert not turn.finished.text.startswith("Step")  # interim texts are deltas only
    assert "Step 1 of 2.\n\nStep 2 of 2.\n\n" in turn.streamed
    assert sum(isinstance(event, UsageReported) for event in turn.events) == 3


@pytest.mark.long
async def test_files_are_written(model: Bench) -> None:
    """`edit:` goes through the edit tool to the disk."""
    turn = await model.ask("edit: sub/notes.txt")
    assert turn.finished.error is None
    assert (model.work / "sub/notes.txt").read_text() == "Written by Orion's offline model.\n"


async def test_commands_do_not_see_the_run_token(model: Bench) -> None:
    """No variable of a tool's environment holds the token, and the supervisor's configuration is gone."""
    turn = await model.ask("run: env; ls ..; cat ../run1/supervisor.json")
    assert "HOME=" in turn.finished.text
    assert "No such file" in turn.finished.text
    assert RUN_TOKEN not in turn.finished.text


async def test_the_run_token_is_what_the_broker_gets(model: Bench) -> None:
    """Every request carries the run token and nothing else as its key, and marks its newest message for the cache."""
    await model.ask("run: true")
    requests = await request_log(model)
    # Source: anthropic 2.12.0, AsyncAnthropic._api_key_auth: an API key travels as a Bearer token too.
    assert [request["headers"]["authorization"] for request in requests] == [
        f"Bearer {RUN_TOKEN}"
    ] * 2
    assert all("x-api-key" not in request["headers"] for request in requests)
    last = requests[-1]["body"]
    assert last["messages"][-1]["content"][-1]["cache_control"] == {"type": "ephemeral"}
    assert last["system"][0]["cache_control"] == {"type": "ephemeral"}
    assert json.dumps(last["messages"]).count("cache_control") == 1


@pytest.mark.parametrize(
    ("ask", "code", "requests"),
    one_of_each(
        [
            ("!429", AgentErrorCode.MODEL_RATE_LIMITED, 3),
            ("!529", AgentErrorCode.MODEL_OVERLOADED, 3),
            ("!500", AgentErrorCode.MODEL_UNAVAILABLE, 3),
            ("!cut", AgentErrorCode.MODEL_UNAVAILABLE, 1),
            ("!context", AgentErrorCode.MODEL_CONTEXT_EXCEEDED, 1),
            ("!refuse", AgentErrorCode.MODEL_REFUSED, 1),
        ],
        lambda row: row[2],
    ),
)
async def test_failures_have_their_codes(
    model: Bench, ask: str, code: AgentErrorCode, requests: int
) -> None:
    """Each failure of the model is told by its own code, after the SDK's retries where these make sense."""
    turn = await model.ask(ask)
    assert turn.finished.error is code, turn.finished.detail
    assert turn.exited.exit_code == 1
    assert len(await request_log(model)) == requests
    assert "Traceback" not in turn.stderr


async def test_cut_stream_keeps_the_partial_text(model: Bench) -> None:
    """What had been written before the stream broke is in the outcome."""
    turn = await model.ask("!cut")
    assert turn.finished.text.startswith("Hello! I am Orion's offline model")
    assert turn.finished.text == turn.streamed.strip()


async def test_silent_model_is_unavailable(model: Bench) -> None:
    """A stream that stalls is given up after the silence limit."""
    turn = await model.ask("!stall", request={"silence_timeout_s": 1})
    assert turn.finished.error is AgentErrorCode.MODEL_UNAVAILABLE
    assert turn.duration_s < 8


@pytest.mark.long
async def test_unknown_model(model: Bench) -> None:
    """A model that does not exist is told as such."""
    turn = await model.ask("hello", model="gpt-oss")
    assert turn.finished.error is AgentErrorCode.MODEL_NOT_FOUND


@pytest.mark.long
async def test_no_broker_is_unavailable(bench: Bench) -> None:
    """With nothing behind the socket the turn fails as a network error, once the relay has waited 15 s for it."""
    turn = await bench.ask("hello")
    assert turn.finished.error is AgentErrorCode.MODEL_UNAVAILABLE
    assert turn.duration_s < 25


@pytest.mark.long
async def test_turn_limit(model: Bench) -> None:
    """More model calls than allowed end the turn, with what had been written."""
    turn = await model.ask("run: true\nrun: true\nrun: true", max_turns=2)
    assert turn.finished.error is AgentErrorCode.TURN_LIMIT
    assert turn.finished.text == "Step 1 of 3.\n\nStep 2 of 3."


async def test_output_token_limit_is_said(model: Bench) -> None:
    """An answer cut at max_tokens is an answer that says so."""
    turn = await model.ask("!markdown", max_output_tokens=10)
    assert turn.finished.error is None
    assert "limit of 10 output tokens" in turn.finished.text


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "--help; -rf / $(reboot) `reboot` \"'\\ \n{relay} {0} %s", marks=pytest.mark.long
        ),
        pytest.param("x" * 40_000 + "the end", marks=pytest.mark.long),
        "zero\u200bwidth \u202eright to left\u202c \x00 nul \x1b[31m \ufeff 🧑‍🚀",
        "lone \ud800 surrogate and \udfff another",
    ],
    ids=["shell", "huge", "invisible", "surrogates"],
)
async def test_hostile_text_arrives_as_it_is(model: Bench, text: str) -> None:
    """Whatever a message holds reaches the model unchanged; only lone surrogates, which UTF-8 cannot carry, are replaced."""
    turn = await model.ask("-n 'first'", "answer", text)
    assert turn.finished.error is None, turn.finished.detail
    messages = (await request_log(model))[-1]["body"]["messages"]
    assert messages[0]["content"][0]["text"] == "-n 'first'"
    assert messages[2]["content"][0]["text"] == text.encode("utf-16", "surrogatepass").decode(
        "utf-16", "replace"
    )


@pytest.mark.long
async def test_long_answer_arrives_whole(model: Bench) -> None:
    """30,000 characters in many deltas come out as one text."""
    turn = await model.ask("!long")
    assert len(turn.finished.text) >= 30_000
    assert turn.streamed.strip() == turn.finished.text

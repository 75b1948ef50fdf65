"""Messages that are written bit by bit: chat.startStream, appendStream and stopStream, and how Slack seals one.

Source: docs.slack.dev, chat.startStream, chat.appendStream and chat.stopStream; what is marked "measured" comes from reports of
integrators. Read 2026-11.
"""

from collections.abc import Callable, Mapping

from app.playground.slack.block_kit import (
    BLOCKS_MAX,
    ID_MAX,
    MARKDOWN_BLOCK_MAX,
    RENDERED_CHARS_MAX,
    check_blocks,
    rendered_chars,
)
from app.playground.slack.methods import (
    SESSION_STATUSES,
    TIER_2,
    TIER_4,
    Call,
    Method,
    Rate,
    metadata_of,
)
from app.playground.slack.types import JsonObject, Message, SlackError, Stream, new_id

"""At once no more than is published for a minute."""
TASK_TEXT_MAX = 256
"""Of a task's title, details or output in one chunk; measured."""
_TASK_STATUSES = frozenset({"pending", "in_progress", "complete", "error"})
_DISPLAY_MODES = frozenset({"timeline", "plan"})
_NOT_STREAMING = "message_not_in_streaming_state"


def _start(call: Call) -> JsonObject:
    channel = call.channel(writing=True)
    if not call.args.text("thread_ts"):
        raise SlackError("invalid_thread_ts")
    mode = call.args.text("task_display_mode") or "timeline"
    if mode not in _DISPLAY_MODES:
        raise SlackError("invalid_arguments")
    for name in ("user_id", "team_id"):
        if channel.im_user is None and not call.args.text(f"recipient_{name}"):
            raise SlackError(f"missing_recipient_{name}")
    stream = Stream(started_at_s=call.workspace.now().timestamp(), shows_plan=mode == "plan")
    _take(call, stream)
    message = call.post(channel, stream.text, blocks=_shown(stream), stream=stream)
    return {"channel": channel.id, "ts": message.ts}


def _append(call: Call) -> JsonObject:
    message, stream = _open_stream(call)
    if not _take(call, stream):
        raise SlackError("no_text")
    call.workspace.show(message, text=stream.text, blocks=_shown(stream))
    return {"channel": message.channel, "ts": message.ts}


def _stop(call: Call) -> JsonObject:
    message, stream = _open_stream(call)
    status = call.args.text("session_status")
    if status and status not in SESSION_STATUSES:
        raise SlackError("invalid_arguments")
    closing = call.args.structure("blocks", error="invalid_blocks_format")
    _take(call, stream)
    if closing:
        stream.parts += check_blocks(closing)
    if "metadata" in call.args:
        message.metadata = metadata_of(call.args)
    stream.state = "completed"
    call.workspace.show(message, text=stream.text, blocks=_shown(stream))
    if status and message.thread_ts:
        call.workspace.set_status(message.channel, message.thread_ts, session=status)
    rendered = call.workspace.render(message, with_metadata=True)
    return {"channel": message.channel, "ts": message.ts, "message": rendered}


def _open_stream(call: Call) -> tuple[Message, Stream]:
    channel = call.channel(writing=True)
    message = call.own_message(channel, error=_NOT_STREAMING)
    call.workspace.seal(message, lifetime_s=call.config.stream_lifetime_s)
    stream = message.stream
    if stream is None or stream.state != "in_progress":
        raise SlackError(
            "stopped_by_user" if stream and stream.is_stopped_by_user else _NOT_STREAMING
        )
    return message, stream


def _take(call: Call, stream: Stream) -> bool:
    """Adds what a call brings, all of it or nothing; whether there was any."""
    chunks = call.args.structure("chunks", error="invalid_chunks") or []
    if not isinstance(chunks, list) or not all(isinstance(chunk, dict) for chunk in chunks):
        raise SlackError("invalid_chunks")
    if text := call.args.text("markdown_text"):
        chunks = [*chunks, {"type": "markdown_text", "text": text}]
    for chunk in chunks:
        check = _CHECKS.get(str(chunk.get("type")))
        if check is None:
            raise SlackError("invalid_chunks")
        check(chunk)
    written = "".join(chunk["text"] for chunk in chunks if chunk["type"] == "markdown_text")
    if len(written) > MARKDOWN_BLOCK_MAX:
        raise SlackError("msg_too_long")
    if rendered_chars(stream.text + written) > RENDERED_CHARS_MAX:
        raise SlackError("msg_too_long")
    blocks = [block for chunk in chunks for block in chunk.get("blocks", ())]
    given = sum(isinstance(part, dict) for part in stream.parts)
    if given + len(blocks) > BLOCKS_MAX:
        raise SlackError("msg_blocks_too_long")
    for chunk in chunks:
        _add(stream, chunk)
    return bool(chunks)


def _add(stream: Stream, chunk: JsonObject) -> None:
    match chunk["type"]:
        case "markdown_text":
            stream.text += chunk["text"]
            if stream.parts and isinstance(stream.parts[-1], str):
                chunk["text"] = stream.parts.pop() + chunk["text"]
            stream.parts.append(chunk["text"])
        case "plan_update":
            stream.plan_title = chunk["title"]
        case "blocks":
            stream.parts += check_blocks(chunk["blocks"])
        case _:
            # Of one id title and status replace, details append; measured.
            task = stream.tasks.setdefault(chunk["id"], {"details": ""})
            if task == {"details": ""} and (len(stream.tasks) == 1 or not stream.shows_plan):
                stream.parts.append(("task", chunk["id"]))
            details = task["details"] + chunk.get("details", "")
            task.update({"title": chunk["title"], "status": chunk["status"], "details": details})


def _shown(stream: Stream) -> list[JsonObject]:
    """Returns the blocks of a stream as they would stand in a message."""
    blocks: list[JsonObject] = []
    for part in stream.parts:
        match part:
            case str():
                blocks.append({"type": "markdown", "text": part})
            case (_, str(task_id)) if stream.shows_plan:
                tasks = [_card(one, task) for one, task in stream.tasks.items()]
                title = stream.plan_title or stream.tasks[task_id]["title"]
                blocks.append({"type": "plan", "title": title, "tasks": tasks})
            case (_, str(task_id)):
                blocks.append(_card(task_id, stream.tasks[task_id]))
            case dict():
                blocks.append(part)
    return [{"block_id": new_id("")[:5], **block} for block in blocks]


def _card(task_id: str, task: Mapping[str, str]) -> JsonObject:
    given = {name: value for name, value in task.items() if value}
    return {"type": "task_card", "task_id": task_id, **given}


def _check_text(chunk: JsonObject) -> None:
    if not isinstance(chunk.get("text"), str):
        raise SlackError("invalid_chunks")


def _check_title(chunk: JsonObject) -> None:
    for name in ("title", "details", "output"):
        value = chunk.get(name, "")
        if not isinstance(value, str) or len(value) > TASK_TEXT_MAX:
            raise SlackError("invalid_chunks", messages=(f"{name} is too long or no text",))
    if not chunk.get("title"):
        raise SlackError("invalid_chunks", messages=("title is missing",))


def _check_task(chunk: JsonObject) -> None:
    _check_title(chunk)
    task_id, status = chunk.get("id"), chunk.get("status")
    if not isinstance(task_id, str) or not 0 < len(task_id) <= ID_MAX:
        raise SlackError("invalid_chunks", messages=("id is missing or too long",))
    if status not in _TASK_STATUSES:
        raise SlackError("invalid_chunks", messages=(f"status {status!r} is none",))


def _check_blocks_chunk(chunk: JsonObject) -> None:
    check_blocks(chunk.get("blocks"))


_CHECKS: Mapping[str, Callable[[JsonObject], None]] = {
    "markdown_text": _check_text,
    "plan_update": _check_title,
    "task_update": _check_task,
    "blocks": _check_blocks_chunk,
}


def _of_streams(handler: Callable[[Call], JsonObject], rate: Rate) -> Method:
    return Method(handler=handler, scopes=("chat:write",), rate=rate)


STREAM_METHODS: Mapping[str, Method] = {
    "chat.startStream": _of_streams(_start, TIER_2),
    "chat.appendStream": _of_streams(_append, TIER_4),
    "chat.stopStream": _of_streams(_stop, TIER_2),
}

"""files.*: the two-call upload. Source: docs.slack.dev, "Working with files" (upload), read 2026-11."""

from app.playground.file_store import FileStore
from app.playground.slack_call import Call
from app.playground.slack_types import BOT_USER_ID, JsonObject, Message, SlackError

__all__ = ["FileStore", "complete_upload", "upload_url"]


def upload_url(call: Call) -> JsonObject:
    """files.getUploadURLExternal."""
    name = call.args.required("filename", error="invalid_arguments")
    stored = call.files.reserve(name=name, size=call.args.number("length", default=0))
    return {"upload_url": f"{call.base_url()}/upload/{stored.id}", "file_id": stored.id}


def complete_upload(call: Call) -> JsonObject:
    """files.completeUploadExternal: shares what was uploaded."""
    listed = call.args.structure("files", error="invalid_arguments")
    if not isinstance(listed, list) or not listed:
        raise SlackError("invalid_arguments")
    rendered = []
    for item in listed:
        stored = call.files.get(str(item.get("id"))) if isinstance(item, dict) else None
        if stored is None or stored.content is None:
            raise SlackError("file_not_found")
        rendered.append(stored.render(base_url=call.base_url()))
    if "channel_id" in call.args:
        channel = call.channel("channel_id", writing=True)
        call.workspace.post(
            channel,
            Message(
                ts="",
                channel=channel.id,
                user=BOT_USER_ID,
                text=call.args.text("initial_comment"),
                thread_ts=call.args.text("thread_ts") or None,
                files=rendered,
            ),
        )
    # The message's ts is not part of the answer: Slack shares files asynchronously.
    return {"files": [{"id": item["id"], "title": item["title"]} for item in rendered]}

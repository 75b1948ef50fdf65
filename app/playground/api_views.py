"""views.*: modals. Source: docs.slack.dev, views.open (no scope, tier 4), read 2026-11."""

from app.playground.slack_call import Call
from app.playground.slack_types import JsonObject


def open_view(call: Call) -> JsonObject:
    """views.open."""
    trigger_id = call.args.required("trigger_id", error="invalid_arguments")
    view = call.args.structure("view", error="invalid_arguments")
    return {"view": call.modals.open(trigger_id, view)}

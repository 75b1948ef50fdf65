"""What Langfuse is told of a run, as attributes of observations; what passes this sanitizer is masked and clipped.

Attribute names and their JSON encoding are the wire format that Langfuse documents for OpenTelemetry.
Source: langfuse 5.0.4, _client/attributes.py, and langfuse.com/docs/opentelemetry, read 2026-11.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final

from app.redaction import Masker
from app.runs.budget import to_dollars
from app.runs.model import ModelCall, Outcome, Run, RunState, SharedFile, Usage
from app.runs.request import AttachedFile, RunId


def trace_id_for(run_id: RunId) -> str:
    """Returns 32 hex digits, equal to `Langfuse.create_trace_id(seed=run_id)` (a test compares them)."""
    return hashlib.sha256(run_id.encode()).digest()[:16].hex()


def root_span_id_for(run_id: RunId) -> int:
    """Returns the id of the root observation.

    Derived too: the steps of an attempt that a crash cut short were sent without their root, and find it when the next
    attempt sends one.
    """
    return int.from_bytes(hashlib.sha256(f"root:{run_id}".encode()).digest()[:8], "big") or 1


def step_span_id_for(run_id: RunId, name: str, key: str) -> int:
    """Returns the id of a step that one slice of a run opens and another one ends."""
    text = f"step:{run_id}:{name}:{key}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") or 1


Attributes = dict[str, str | int | list[str]]

PROMPT_NAME: Final = "orion-system-prompt"
"""What Langfuse lists the system prompt as; not merely Orion's name, which a prompt of the operator's may have."""

MAX_CONTENT_BYTES: Final = 32 * 1024
"""Of a prompt, an answer or a tool's argument. Langfuse Cloud takes 5 MB a request, with many observations in it."""
MAX_NAME_CHARS: Final = 200
"""Langfuse drops longer user ids, session ids, tags and trace metadata instead of cutting them."""
MAX_STATUS_CHARS: Final = 2_000
_DIGITS: Final = 6
"""Of seconds and dollars."""

# Langfuse would upload what such an URI holds to its object storage.
_DATA_URI: Final = re.compile(r"data:[\w./+-]{1,80};base64,[A-Za-z0-9+/=_-]*+")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanSanitizer:
    """Decides what may pass to Langfuse, and in which form."""

    masker: Masker
    trace_content: bool

    def name(self, text: str) -> str:
        return self.masker.mask(text)[:MAX_NAME_CHARS]

    def status(self, text: str) -> str:
        return self.masker.mask(text)[:MAX_STATUS_CHARS]

    def content(self, text: str) -> str:
        """Returns a text masked and clipped, in this order: a secret may straddle the cut."""
        masked = _DATA_URI.sub("[media removed]", self.masker.mask(text)).encode()
        if len(masked) <= MAX_CONTENT_BYTES:
            return masked.decode()
        kept = masked[:MAX_CONTENT_BYTES].decode(errors="ignore")
        return f"{kept}\n[clipped: {len(masked)} bytes]"

    def files(
        self, files: Sequence[AttachedFile | SharedFile]
    ) -> Sequence[Mapping[str, object]] | None:
        """Returns files by size, and by name where content is traced; None = there are none."""
        return [
            {"bytes": one.size, **({"name": self.name(one.name)} if self.trace_content else {})}
            for one in files
        ] or None

    def metadata(self, values: Mapping[str, object]) -> Attributes:
        return {
            f"langfuse.observation.metadata.{key}": _json(self._plain(key, value))
            for key, value in values.items()
            if value is not None
        }

    def _plain(self, key: str, value: object) -> object:
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        masked = self.masker.mask_value({key: value})
        assert isinstance(masked, dict)  # noqa: S101 - mask_value keeps the shape
        plain = next(iter(masked.values()))
        return plain[:MAX_STATUS_CHARS] if isinstance(plain, str) else plain


def shared_attributes(run: Run, sanitizer: SpanSanitizer) -> Attributes:
    """Returns what every observation of a run carries: Langfuse finds traces by user, session and tags of *each* of them."""
    request = run.request
    tags = [sanitizer.name(tag) for tag in (run.agent, run.provider, request.surface.value) if tag]
    return {
        "user.id": sanitizer.name(request.user),
        "session.id": sanitizer.name(request.thread.key),
        "langfuse.trace.name": "run",
        "langfuse.trace.tags": tags,
        "langfuse.trace.metadata.run_id": _json(sanitizer.name(run.id)),
    }


def root_attributes(run: Run, sanitizer: SpanSanitizer) -> Attributes:
    """Returns what is known when the run is taken up; its prompt only where content is traced."""
    request = run.request
    if sanitizer.trace_content:
        shown = sanitizer.content(request.text)
    else:
        shown = _json({"prompt_length": len(request.text)})
    return {
        "langfuse.observation.type": "agent",
        "langfuse.observation.input": shown,
        **sanitizer.metadata(
            {
                "run_id": run.id,
                "channel": request.channel,
                "message_ts": request.message_ts,
                "thread_ts": request.thread_ts,
                "attempt": run.attempt,
                "retry_of": request.retry_of,
                "sandbox_id": run.sandbox_id,
                "model": run.model or None,
                "files": sanitizer.files(request.content.files),
            }
        ),
    }


def result_attributes(
    result: Outcome, *, delivery: str, detail: str, sanitizer: SpanSanitizer
) -> Attributes:
    """Returns how the run ended; `detail` explains its error code."""
    output: dict[str, object] = {
        "success": result.state is RunState.SUCCEEDED,
        "outcome": result.state.value,
        "response_length": len(result.answer),
        **{
            name: round(value, _DIGITS) if value else value
            for name, value in result.measures.items()
        },
        "delivery": sanitizer.name(delivery),
        "model_calls": result.usage.model_calls,
        "usage": usage_details(result.usage),
    }
    if files := sanitizer.files(result.files):
        output["files"] = files
    if result.hosts:
        output["hosts"] = [
            {**asdict(one), "host": sanitizer.name(one.host), "reason": one.reason}
            for one in result.hosts
        ]
    if sanitizer.trace_content:
        output["answer"] = sanitizer.content(result.answer)
    attributes: Attributes = {
        "langfuse.observation.output": _json(output),
        **sanitizer.metadata({"delivery": delivery, "resumed": result.resumed}),
    }
    if result.error_code is not None:
        attributes |= failure_attributes(result.error_code, detail, sanitizer)
    elif result.state is RunState.STOPPED:
        attributes |= warning_attributes(f"STOPPED: by {result.stopped_by or 'unknown'}", sanitizer)
    elif delivery.startswith("failed"):
        attributes |= warning_attributes(f"DELIVERY: {delivery}", sanitizer)
    return attributes


def failure_attributes(code: str, detail: str, sanitizer: SpanSanitizer) -> Attributes:
    """Returns a red observation. Langfuse has no field for a code, so it begins the status and stands in the metadata."""
    return {
        "langfuse.observation.level": "ERROR",
        "langfuse.observation.status_message": sanitizer.status(
            f"{code}: {detail}" if detail else code
        ),
        **sanitizer.metadata({"error_code": code}),
    }


def warning_attributes(status: str, sanitizer: SpanSanitizer) -> Attributes:
    """Returns a yellow observation: worth a look, nobody has to act."""
    return {
        "langfuse.observation.level": "WARNING",
        "langfuse.observation.status_message": sanitizer.status(status),
    }


def generation_attributes(
    call: ModelCall, sanitizer: SpanSanitizer, *, prompt_version: int | None = None
) -> Attributes:
    """Returns a model call; where the operator has set no price, Langfuse works the cost out from model and usage.

    `prompt_version`: the one of the system prompt that it is linked to; None = to none.
    """
    attributes: Attributes = {
        "langfuse.observation.type": "generation",
        "langfuse.observation.model.name": sanitizer.name(call.model),
        **sanitizer.metadata({"http_status": call.status}),
    }
    if prompt_version is not None:
        attributes["langfuse.observation.prompt.name"] = PROMPT_NAME
        attributes["langfuse.observation.prompt.version"] = prompt_version
    if call.usage != Usage():
        attributes["langfuse.observation.usage_details"] = _json(usage_details(call.usage))
    if call.cost is not None:
        attributes["langfuse.observation.cost_details"] = _json({"total": to_dollars(call.cost)})
    if call.first_token_at is not None:
        moment = call.first_token_at.astimezone(UTC).isoformat(timespec="milliseconds")
        attributes["langfuse.observation.completion_start_time"] = _json(
            moment.replace("+00:00", "Z")
        )
    if call.error or not 200 <= call.status < 300:  # noqa: PLR2004 - HTTP's success class
        reason = call.error or "failed"
        attributes |= {
            "langfuse.observation.level": "ERROR",
            "langfuse.observation.status_message": sanitizer.status(
                f"HTTP {call.status}: {reason}"
            ),
            **sanitizer.metadata({"error_type": call.error or None}),
        }
    return attributes


def usage_details(usage: Usage) -> dict[str, int]:
    """Keys that Langfuse's price table knows; it sums those with `input` in their names as input.

    Source: Langfuse server 4.16.0, cost calculation, measured 2026-11.
    """
    return {
        "input": usage.input_tokens,
        "output": usage.output_tokens,
        "cache_read_input_tokens": usage.cache_read_tokens,
        "cache_creation_input_tokens": usage.cache_creation_tokens,
    }


def score_id_for(run_id: RunId, *, user: str) -> str:
    """Returns the id of a person's score: Langfuse replaces one of the same id, so a person's latest feedback counts."""
    return f"{run_id}-fb-{user}"


def nanoseconds(moment: datetime) -> int:
    """Returns Unix time in ns, exact to the microsecond (a float of seconds is not)."""
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)

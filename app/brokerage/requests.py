"""What a run asks of a model, and how it is told no: pure, the same in every protocol."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NAME_CHARS = 80
"""Of what a sandbox wrote, in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """HTTP status, error type in Anthropic's words (other protocols have their own for it), message."""

    status: int
    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request as it came."""

    path: str
    """Below the protocol's own path."""
    body: bytes = field(repr=False)
    query: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A request that may go on. `body` is written anew: two readers of one text may read it differently."""

    model: str
    path: str
    """With its query, below the provider's base URL."""
    body: bytes = field(repr=False)
    has_output: bool = True
    """Otherwise it only asks how many tokens it has."""


def unauthorized(reason: str) -> Refused:
    """Whose token it is does not count here."""
    return Refused(status=401, kind="authentication_error", message=reason)


def forbidden(reason: str) -> Refused:
    """More than the run was granted."""
    return Refused(status=403, kind="permission_error", message=reason)


def too_many(reason: str) -> Refused:
    """More at once than one run may have; it can be tried again."""
    return Refused(status=429, kind="rate_limit_error", message=reason)


def invalid(reason: str) -> Refused:
    """No request of this protocol."""
    return Refused(status=400, kind="invalid_request_error", message=reason)


def shown(value: object) -> str:
    """What a sandbox wrote, quoted for a message: short, and without characters that no answer can have."""
    return repr(str(value)[:NAME_CHARS])


def find_odd_header(headers: Mapping[str, str]) -> Refused | None:
    """The refusal of headers that cannot be sent on."""
    odd = next((name for name, value in headers.items() if not value.isascii()), None)
    return invalid(f"the header {odd} has characters that are not ASCII") if odd else None


def read_object(body: bytes) -> dict[str, Any] | None:
    """The JSON object in a body; None when there is none."""
    try:
        fields: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def first_unknown(fields: Mapping[str, Any], known: frozenset[str]) -> str:
    """The name of a field that is not known, shortened; empty when there is none."""
    return next((name[:NAME_CHARS] for name in fields if name not in known), "")


def without_empty(fields: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """Unknown fields that say null or false are as good as not there: clients write them down for all they know."""
    return {
        name: value
        for name, value in fields.items()
        if name in known or not (value is None or value is False)
    }


def is_count(value: object) -> bool:
    """Whether it is a whole number of at least 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1

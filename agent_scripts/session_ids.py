"""Session ids of agents that take one from their caller. Pure."""

import re
import uuid

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def checked_uuid(text: str, *, agent: str) -> str:
    """The same text. Nothing but the plain form: the same number can be written with braces, or as a URN.

    Raises:
        ValueError: it is no UUID, so nothing of it may reach a command line.
    """
    if not _UUID.fullmatch(text):
        raise ValueError(f"not a session id of {agent}: {text[:80]!r}")
    return text


def told_uuid(value: object) -> str | None:
    """The session id that an agent told, in the form that it takes back; None for anything else."""
    try:
        return value if isinstance(value, str) and str(uuid.UUID(value)) == value else None
    except ValueError:
        return None

"""Which trace belongs to a run: ids derived from the run id, so every process and every attempt finds the same one."""

import hashlib

from app.runs.model import RunId


def trace_id_for(run_id: RunId) -> str:
    """32 hex digits, equal to `Langfuse.create_trace_id(seed=run_id)` (a test compares them)."""
    return hashlib.sha256(run_id.encode()).digest()[:16].hex()


def root_span_id_for(run_id: RunId) -> int:
    """The id of the root observation.

    Derived too: the steps of an attempt that a crash cut short were sent without their root, and find it when the next
    attempt sends one.
    """
    return int.from_bytes(hashlib.sha256(f"root:{run_id}".encode()).digest()[:8], "big") or 1

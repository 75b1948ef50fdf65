"""Cursor's command line. EXPERIMENTAL: nobody here ever ran it."""

from agent_scripts.adapter import AgentSpec

SPEC = AgentSpec(
    name="cursor",
    adapter=f"{__name__}.adapter:CursorAdapter",
    title="experimental",
    protocol=None,
    default_model="auto",
    reserved_bytes=32 * 2**30,
    is_ambiguous=True,
    own_key="CURSOR_API_KEY",
    # Source: GitHub's list of secret scanning patterns, read 2026-11.
    own_key_form=r"(crsr|key)_[0-9a-f]{20}",
    other_words=("cursors", "cursory", "precursor"),
)

"""What keys look like: one in the wrong place, or of the wrong kind, is said at the start and not in the first run."""

import re

MODEL_KEYS = (
    *("anthropic_api_key", "openai_api_key", "gemini_api_key", "ai_gateway_api_key"),
    *("cursor_api_key", "copilot_github_token"),
)
"""Fields of the settings."""

# Sources: the vendors' documentation of their keys, and GitHub's list of secret scanning patterns, read 2026-11.
_OWNERS = (
    (re.compile(r"sk-ant-"), "ANTHROPIC_API_KEY"),
    (re.compile(r"sk-(proj|svcacct|admin)-"), "OPENAI_API_KEY"),
    (re.compile(r"AIza"), "GEMINI_API_KEY"),
    (re.compile(r"vck_"), "AI_GATEWAY_API_KEY"),
    (re.compile(r"(crsr|key)_[0-9a-f]{20}"), "CURSOR_API_KEY"),
    (re.compile(r"gh[opusr]_|github_pat_"), "COPILOT_GITHUB_TOKEN"),
    (re.compile(r"xox[abeoprs]-|xapp-"), "SLACK_BOT_TOKEN or SLACK_APP_TOKEN"),
)
_FORMS = {
    "OPENAI_API_KEY": (re.compile(r"sk-"), "starts with sk-"),
    "GEMINI_API_KEY": (re.compile(r"AIza|AQ\."), "starts with AIza or AQ."),
}
_HEADER_TEXT = re.compile(r"[!-~]+")


def find_key_problem(name: str, key: str, *, is_vendors: bool) -> str:
    """What is wrong with the key of that setting, without its value; empty when nothing is.

    `is_vendors`: it is for the vendor's own servers. Others that speak their protocols have keys of any form.
    """
    if not _HEADER_TEXT.fullmatch(key):
        return "a key has neither blanks nor line ends, nor letters beyond ASCII"
    if name == "COPILOT_GITHUB_TOKEN" and key.startswith("ghp_"):
        return "a classic token (ghp_…) is not accepted; make a fine-grained one with Copilot permission"
    if not is_vendors:
        return ""
    owner = next((owner for form, owner in _OWNERS if form.match(key)), name)
    if owner != name:
        return f"this looks like a value for {owner}"
    form, saying = _FORMS.get(name, (None, ""))
    return f"such a key {saying}" if form is not None and not form.match(key) else ""

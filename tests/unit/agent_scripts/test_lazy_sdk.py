"""What of the SDK the anthropic agent loads."""

import subprocess
import sys

import pytest

LAZY = "from agent_scripts.agents.anthropic.inside.lazy_sdk import anthropic"
COUNT = "import sys; print(sum(name.startswith('anthropic') for name in sys.modules))"


def _run(*lines: str) -> str:
    """What a Python of its own prints."""
    return subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.long
def test_half_of_its_modules_stay_unloaded() -> None:
    """Even with a client and a stream."""
    use = "client = anthropic.AsyncAnthropic(api_key='k'); client.messages.stream"
    assert int(_run(LAZY, use, COUNT)) < int(_run("import anthropic", use, COUNT)) / 2


@pytest.mark.long
def test_its_names_are_what_they_were() -> None:
    """All that it passes on by name and the agent may use; one that there is not fails as anywhere."""
    show = (
        "for name in ('AsyncAnthropic', 'APIStatusError', 'Timeout', 'DefaultAsyncHttpxClient', 'BaseModel'):",
        "    print(name, getattr(anthropic, name).__qualname__)",
        "print(anthropic.types.Message.construct(id='m').to_dict())",
        "print(hasattr(anthropic, 'nothing'), hasattr(anthropic.types, 'nothing'))",
    )
    assert _run(LAZY, *show) == _run("import anthropic", *show)

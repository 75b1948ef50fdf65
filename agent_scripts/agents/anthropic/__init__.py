"""Our own script on Anthropic's SDK, with a shell and an edit tool."""

from agent_scripts.adapter import AgentSpec, ModelProtocol
from agent_scripts.agents import DEFAULT_MODEL

SPEC = AgentSpec(
    name="anthropic",
    adapter=f"{__name__}.adapter:AnthropicAdapter",
    title="our script",
    protocol=ModelProtocol.ANTHROPIC,
    default_model=DEFAULT_MODEL,
    has_sessions=False,
    hears_messages=True,
    is_ambiguous=True,
)

"""NAME, which asks a model and runs its commands."""

from agent_scripts.adapter import AgentSpec, ModelProtocol

SPEC = AgentSpec(
    name="NAME",
    adapter=f"{__name__}.adapter:NameAdapter",
    protocol=ModelProtocol.ANTHROPIC,
    default_model="claude-sonnet-5-5",
    has_sessions=False,
    takes_mcp_servers=False,
)

"""GitHub Copilot's command line."""

from agent_scripts.adapter import AgentSpec, ModelProtocol
from agent_scripts.agents import DEFAULT_MODEL

SPEC = AgentSpec(
    name="copilot",
    adapter=f"{__name__}.adapter:CopilotAdapter",
    protocol=ModelProtocol.ANTHROPIC,
    default_model=DEFAULT_MODEL,
    takes_session_id=True,
    # Node: for WebAssembly, which is hardly used.
    reserved_bytes=32 * 2**30,
    # With a provider of one's own, all calls name its one model.
    helper_models=(),
    other_words=("pilot",),
)

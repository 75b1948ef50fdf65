"""Gemini CLI, Google's command line."""

from agent_scripts.adapter import AgentSpec, ModelProtocol

SPEC = AgentSpec(
    name="gemini",
    adapter=f"{__name__}.adapter:GeminiAdapter",
    protocol=ModelProtocol.GEMINI,
    default_model="gemini-2.5-pro",
    takes_session_id=True,
    # Node: for WebAssembly, which is hardly used.
    reserved_bytes=32 * 2**30,
    # With a model named it asks no router, and what would ask another one is turned off.
    helper_models=(),
)

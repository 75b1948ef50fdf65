"""Codex, OpenAI's command line."""

from agent_scripts.adapter import AgentSpec, ModelProtocol

SPEC = AgentSpec(
    name="codex",
    adapter=f"{__name__}.adapter:CodexAdapter",
    protocol=ModelProtocol.OPENAI,
    default_model="gpt-5.4",
    hears_messages=True,
    # It asks for no other model than the one it is given.
    helper_models=(),
    other_words=("code", "codec", "coded", "coder", "codes"),
)

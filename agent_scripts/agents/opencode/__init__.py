"""OpenCode, the open command line."""

from agent_scripts.adapter import AgentSpec, ModelProtocol

SPEC = AgentSpec(
    name="opencode",
    adapter=f"{__name__}.adapter:OpenCodeAdapter",
    protocol=ModelProtocol.OPENAI,
    default_model="gpt-5.4",
    # Bun takes all that there is, within 4 GiB it runs out of it.
    reserved_bytes=64 * 2**30,
    # Its small model is the run's own.
    helper_models=(),
    other_words=("encode", "encoded", "opcode", "opcodes"),
)

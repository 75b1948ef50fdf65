"""Claude Code, Anthropic's command line."""

from agent_scripts.adapter import AgentSpec, ModelProtocol
from agent_scripts.agents import DEFAULT_MODEL

SPEC = AgentSpec(
    name="claude",
    adapter=f"{__name__}.adapter:ClaudeCodeAdapter",
    title="Claude Code",
    protocol=ModelProtocol.ANTHROPIC,
    default_model=DEFAULT_MODEL,
    takes_session_id=True,
    hears_messages=True,
    # The command's environment points every helper of the CLI to the run's own model.
    helper_models=(),
    other_words=("clad", "clade", "clause", "clue", "laude"),
)

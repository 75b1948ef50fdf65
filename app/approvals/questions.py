"""What an agent asks people in mid-run, by a tool of Orion's own, and how it must put it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.approvals.rules import ASKER, CHANNEL, Deed, DeedKind

SERVER: Final = "orion"
"""The MCP server of Orion's own, as agents know it."""
TOOL: Final = "ask_person"
MAX_TEXT_CHARS: Final = 2_000
"""Of a question, and of an answer."""
MAX_OPTIONS: Final = 8
MAX_OPTION_CHARS: Final = 75
"""Source: Slack Block Kit, button, text, read 2026-11."""
MAX_QUESTIONS: Final = 20
"""Of one run: whoever asks more does not work."""

TOOL_DEFINITION: Final[Mapping[str, Any]] = {
    "name": TOOL,
    "description": (
        "Ask a person in Slack something that you need to know to go on and cannot find out yourself; waits for the answer. "
        "It stands for AskUserQuestion and whatever else you know for asking. "
        "Offer `options` where there are some: they become buttons; the person may also write another answer. "
        "Say in `otherwise` what you will do when nobody answers in time."
    ),
    "inputSchema": {
        "type": "object",
        "properties": {
            "text": {
                "type": "string",
                "description": f"The question, whole by itself; at most {MAX_TEXT_CHARS:,} characters.",
            },
            "options": {
                "type": "array",
                "items": {"type": "string"},
                "description": f"At most {MAX_OPTIONS} answers to choose from, of {MAX_OPTION_CHARS} characters each.",
            },
            "otherwise": {
                "type": "string",
                "description": "What you do without an answer, such as: I keep the old name.",
            },
            "who": {
                "type": "string",
                "enum": [ASKER, CHANNEL],
                "description": "Who may answer: the person who asked you (the default), or anybody in the channel.",
            },
        },
        "required": ["text", "otherwise"],
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    text: str
    options: tuple[str, ...] = ()
    """What the person may choose; they may write something else, too."""
    otherwise: str
    """What the agent does without an answer."""
    who: str = ASKER
    """Who may answer: `ASKER` or `CHANNEL`."""

    @property
    def deed(self) -> Deed:
        """Returns it as what is kept and told apart: an answer is for exactly this."""
        arguments = {"options": self.options, "otherwise": self.otherwise, "who": self.who}
        return Deed(kind=DeedKind.QUESTION, target=self.text, arguments=arguments)


def read_question(arguments: object) -> Question:
    """Reads what an agent has given the tool. Raises: ValueError: what is wrong, for the agent."""
    if not isinstance(arguments, dict):
        raise ValueError("the arguments must be an object")  # noqa: TRY004 - all that is wrong is told in one way
    if unknown := sorted(set(arguments) - set(TOOL_DEFINITION["inputSchema"]["properties"])):
        raise ValueError(f"there is no argument {', '.join(map(repr, unknown))}")
    options = arguments.get("options") or []
    if not isinstance(options, list) or len(options) > MAX_OPTIONS:
        raise ValueError(f"options must be a list of at most {MAX_OPTIONS} texts")
    read = tuple(
        _text(f"option {number}", one, MAX_OPTION_CHARS) for number, one in enumerate(options, 1)
    )
    if len(set(read)) < len(read):
        raise ValueError("two options are the same")
    who = arguments.get("who") or ASKER
    if who not in (ASKER, CHANNEL):
        raise ValueError(f"who must be {ASKER} or {CHANNEL}")
    return Question(
        text=_text("text", arguments.get("text"), MAX_TEXT_CHARS),
        options=read,
        otherwise=_text("otherwise", arguments.get("otherwise"), MAX_TEXT_CHARS),
        who=who,
    )


def _text(name: str, value: object, max_chars: int) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} must be a text that is not empty")
    text = value.encode("utf-8", "replace").decode().strip()
    if len(text) > max_chars:
        raise ValueError(f"{name} has {len(text)} characters; {max_chars} are allowed")
    return text

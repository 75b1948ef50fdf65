"""What is a command about a channel's memory, and what is a question like any other."""

import pytest

from app.runs.testing import MemoryCommand, MemoryVerb, parse_memory_command
from tests.building import make_request


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("remember we use uv", "we use uv"),
        ("Remember that we deploy on Tuesdays.", "we deploy on Tuesdays."),
        ("please remember: is it green?", "is it green?"),
        ("hey, remember, the db is   PostgreSQL", "the db is PostgreSQL"),
        ("remember: the db\nis   PostgreSQL", "the db is PostgreSQL"),
        ("remember this: no force pushes", "no force pushes"),
        ("remember: when it rains, ask Ada", "when it rains, ask Ada"),
        ("remember", ""),
        ("remember this!", ""),
        ("remember it", ""),
    ],
)
def test_what_is_to_be_remembered(text: str, kept: str) -> None:
    """All that stands behind the word, in one line."""
    assert parse_memory_command(text) == MemoryCommand(verb=MemoryVerb.REMEMBER, text=kept)


@pytest.mark.parametrize(
    ("text", "words", "numbers"),
    [
        ("forget 3", "", (3,)),
        ("please forget #3.", "", (3,)),
        ("forget notes 2, 3 and 5", "", (2, 3, 5)),
        ("forget 2 2", "", (2,)),
        ("forget we use uv", "we use uv", ()),
        ("forget that we use uv.", "we use uv", ()),
        ('forget "the db"', "the db", ()),
        ("forget: it", "it", ()),
        ("Forget everything!", "everything", ()),
        ("forget all", "everything", ()),
        *((nothing, "", ()) for nothing in ("forget", "Please forget", "forget:", "forget  ")),
    ],
)
def test_what_is_to_be_forgotten(text: str, words: str, numbers: tuple[int, ...]) -> None:
    """By the numbers that are shown, or by words; nothing behind it is told."""
    command = MemoryCommand(verb=MemoryVerb.FORGET, text=words, numbers=numbers)
    assert parse_memory_command(text) == command


@pytest.mark.parametrize(
    "text",
    [
        *("what do you know here?", "What do you know about this channel", "what you know here"),
        *(
            "what do you remember?",
            "show me what you know here.",
            "what do you remember of this DM",
        ),
        "hi, tell me what you remember here",
    ],
)
def test_asking_what_is_known(text: str) -> None:
    """In the words of the help, and simple variants."""
    assert parse_memory_command(text) == MemoryCommand(verb=MemoryVerb.SHOW)


@pytest.mark.parametrize(
    "text",
    [
        *("remember when we shipped v2?", "remember how it was done", "remember me to Ada"),
        *("remember that bug from last week?", "remembering is hard", "do you remember Ada?"),
        "remember 4711\nand write it into a file",
        *("forget it", "forget that", "forget it, do the other one", "forget about the tests"),
        *("forget ...", 'forget ""', "forget: ."),
        *("forget what I said", "forget.", "forget this\nand go on", "what do you know?"),
        *("what do you know about PostgreSQL here?", "I forget 3", "", " ", "\u200b"),
        f"forget {'x' * 500}",
    ],
)
def test_what_goes_to_an_agent(text: str) -> None:
    """What a sentence may as well mean otherwise."""
    assert parse_memory_command(text) is None


def test_a_command_may_stand_behind_options_and_is_none_beside_another() -> None:
    """As `settings` may; what is misspelt is told first."""
    behind = make_request(text="use codex: remember we use uv")
    assert behind.memory_command == MemoryCommand(verb=MemoryVerb.REMEMBER, text="we use uv")
    assert behind.is_command
    assert make_request(text="settings").memory_command is None
    assert make_request(text="settings").is_command
    assert not make_request(text="what is new?").is_command


def test_a_long_message_is_looked_at_quickly() -> None:
    """Whatever it begins with, in a time that grows with its length alone."""
    for text in (
        "please " * 6000,
        " " * 40_000,
        "forget " * 6000,
        "remember " * 4000,
        "forget 1," * 4000,
        f"forget{' ' * 20_000}\na\nb",
        f"forget a{' ' * 20_000}\nb",
    ):
        parse_memory_command(text)

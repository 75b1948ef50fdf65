"""Names of sessions, which people read in branches and pull requests."""

import re

from coolname import generate_slug

from app.runs.session import UNWANTED_WORDS, new_name


def test_names_are_two_words_that_nobody_minds() -> None:
    """Of a library's, many as they are; each word that is left out is one of its own."""
    plain = [str(generate_slug(2)) for _ in range(20_000)]
    words = {word for name in plain for word in name.split("-")}
    assert words >= UNWANTED_WORDS
    names = [new_name() for _ in range(2_000)]
    assert all(re.fullmatch(r"[a-z]+-[a-z]+", name) for name in names)
    assert UNWANTED_WORDS.isdisjoint(word for name in names for word in name.split("-"))
    assert len(set(names)) > 1_900

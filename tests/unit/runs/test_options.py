"""What a message may begin with."""

from __future__ import annotations

import pytest

from app.runs.options import SANDBOX_WORDS, parse_options, unknown_sandbox


@pytest.mark.parametrize(
    ("text", "sandbox", "prompt"),
    [
        ("sandbox=docker fix it", "docker", "fix it"),
        ("  SANDBOX=Docker\n\nfix  it\nnow", "docker", "fix  it\nnow"),
        ("/docker fix it", "docker", "fix it"),
        ("/cloud fix it", "cloud", "fix it"),
        ("/cloud: fix it", "cloud", "fix it"),
        ("/docker, fix it", "docker", "fix it"),
        ("`sandbox=docker` fix it", "docker", "fix it"),
        ("*sandbox=docker*: fix it", "docker", "fix it"),
        ("/provider `deno`, fix it", "deno", "fix it"),
        ("`ls` and *this*: why?", "", "`ls` and *this*: why?"),
        ("/provider deno fix it", "deno", "fix it"),
        ("/provider\tvercel\nfix", "vercel", "fix"),
        ("sandbox=local /local fix", "local", "fix"),
        ("sandbox=local", "local", ""),
        ("fix sandbox=docker", "", "fix sandbox=docker"),
        ("/etc/hosts is what?", "", "/etc/hosts is what?"),
        ("/local/bin is what?", "", "/local/bin is what?"),
        ("/help", "", "/help"),
        ("/locate the bug", "", "/locate the bug"),
        ("sandbox docker is what?", "", "sandbox docker is what?"),
        ("name=value means what?", "", "name=value means what?"),
        ("x=5; what is x?", "", "x=5; what is x?"),
        ("  indented stays", "", "  indented stays"),
        ("", "", ""),
        ("   ", "", "   "),
    ],
)
def test_options_are_taken_from_the_start_of_a_message(
    text: str, sandbox: str, prompt: str
) -> None:
    """What is no option stays in the question, to the character."""
    options = parse_options(text)
    assert (options.sandbox, options.prompt, options.problem) == (sandbox, prompt, "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sandbox=dokcer fix", "did you mean docker?"),
        ("sandbox= fix", "a sandbox is not named; there are: local, docker, vercel, deno, cloud"),
        ("sandbox=mars fix", "there is no sandbox 'mars'"),
        ("/provider mars fix", "there is no sandbox 'mars'"),
        ("/provider", "a sandbox is not named"),
        ("sanbox=docker fix", "did you mean sandbox=?"),
        ("/dokcer fix", "did you mean /docker?"),
        ("/docker sandbox=local fix", "two sandboxes, docker and local"),
        ("sandbox = docker fix", "write sandbox=docker, without spaces"),
        ("sandbox: docker fix", "write sandbox=docker"),
        ("--sandbox=Docker fix", "write sandbox=docker"),
        ("/provider=deno fix", "write sandbox=deno"),
        ("provider: deno fix", "write sandbox=deno"),
    ],
)
def test_what_is_nearly_right_is_told(text: str, said: str) -> None:
    """A misspelt option is not silently a part of the question."""
    assert said in parse_options(text).problem


def test_every_word_works_in_every_form() -> None:
    """The three ways to say it are the same."""
    for word in SANDBOX_WORDS:
        forms = (f"sandbox={word} x", f"/{word} x", f"/provider {word} x")
        assert {parse_options(form).sandbox for form in forms} == {word}


def test_a_long_word_is_cut() -> None:
    """A person's whole message does not come back as an error."""
    assert len(unknown_sandbox("x" * 5000, SANDBOX_WORDS)) < 200

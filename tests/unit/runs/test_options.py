"""What a message may begin with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.runs.testing import (
    SANDBOX_WORDS,
    RunOptions,
    Scope,
    SettingsCommand,
    parse_options,
    unknown_word,
)

_ALL = {"sandbox": "local", "agent": "claude", "repo": "acme/api", "branch": "fix/a"}


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
        ("sandbox= fix", "a sandbox is not named; write it behind sandbox="),
        ("/provider", "a sandbox is not named"),
        ("sanbox=docker fix", "did you mean sandbox=?"),
        ("/dokcer fix", "did you mean /docker?"),
        ("/docker sandbox=local fix", "two sandboxes, docker and local"),
        ("sandbox = docker fix", "write sandbox=docker, without spaces"),
        ("sandbox: docker fix", "write sandbox=docker"),
        ("--sandbox=Docker fix", "write sandbox=docker"),
        ("/provider=deno fix", "write sandbox=deno"),
        ("provider: deno fix", "write sandbox=deno"),
        ("model=sonnet[1m] fix", "write 'sonnet'; I cannot ask for a [1m] window"),
        ("settings agnt=codex", "did you mean agent=?"),
        (
            "settings channel colour=red",
            "there is no setting 'colour' here; there are: sandbox, agent",
        ),
        ("settings model=x /foo", "there is no setting '/foo'"),
        ("settings model=x please", "and nothing behind them: 'please'"),
        ("settings reset agent", "settings reset forgets all of them"),
        ("settings model=None", "'None' is no model"),
        ("model = opus fix", "write model=opus, without spaces"),
        ("repo = acme/api fix", "write repo=acme/api"),
        ("--model=opus fix", "write model=opus"),
        ("agent: codex fix", "write agent=codex"),
        ("model=gpt 5 fix", "write model=gpt-5"),
        ("`model=sonnet 4.5`: fix", "write model=sonnet-4.5"),
        ('model="gpt 4o" fix', "write model=gpt-4o"),
        ("repos=acme/api fix", "did you mean repo=?"),
        ("agents=codex fix", "did you mean agent=?"),
        ("brnach=main fix", "did you mean branch=?"),
        ("hey, modle=opus fix", "did you mean model=?"),
        ("use codex modle=opus fix", "did you mean model=?"),
        ("repo=git@github.com:acme/api.git fix", "write repo=acme/api,"),
        ("repo=https://me:secret@github.com/acme/api fix", "write repo=acme/api,"),
        ("repo=acme/.git fix", "write repo=owner/name"),
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


def test_the_nearest_word_is_named() -> None:
    """By likeness, else the one that begins so."""
    assert "did you mean gpt-5.4?" in unknown_word("model", "gpt", ["gpt-5.4", "gpt-5.4-mini"])
    assert "did you mean claude-opus-5-5?" in unknown_word("model", "claude", ["claude-opus-5-5"])


def test_a_long_word_is_cut() -> None:
    """A person's whole message does not come back as an error."""
    assert len(unknown_word("sandbox", "x" * 5000, SANDBOX_WORDS)) < 200


@pytest.mark.parametrize(
    ("text", "said", "prompt"),
    [
        ("use claude: fix it", {"agent": "claude"}, "fix it"),
        ("With Anthropic: fix", {"agent": "anthropic"}, "fix"),
        ("agent=claude model=opus fix", {"agent": "claude", "model": "opus"}, "fix"),
        ("repo=acme/api use claude branch=fix/a sandbox=local go", _ALL, "go"),
        ("repo=https://git.example/a/b.git x", {"repo": "https://git.example/a/b.git"}, "x"),
        ("repo=https://git.example./a x", {"repo": "https://git.example./a"}, "x"),
        ("repo=https://[2606::1]/a x", {"repo": "https://[2606::1]/a"}, "x"),
        ("repo=acme/api.git x", {"repo": "acme/api"}, "x"),
        ("repo=acme/api.git/ x", {"repo": "acme/api"}, "x"),
        ("repo=HTTPS://Git.example/a x", {"repo": "https://Git.example/a"}, "x"),
        ("use the other file", {}, "use the other file"),
        ("use cluade fix", {"agent": "cluade"}, "use cluade fix"),
        ("use cluade: fix", {"agent": "cluade"}, "fix"),
        ("use bash: fix", {}, "use bash: fix"),
        ("with claude", {"agent": "claude"}, ""),
        ("mode=fast is what?", {}, "mode=fast is what?"),
    ],
)
def test_agents_models_and_repositories(text: str, said: dict[str, str], prompt: str) -> None:
    """In any order; `use` and `with` count before an agent's name only."""
    options = parse_options(text)
    assert (dict(options.said), options.prompt, options.problem) == (said, prompt, "")


@pytest.mark.parametrize(
    "text",
    [
        "agent=cl@ude fix",
        "settings agent=claude please",
        "settings channel model=x is this right?",
        "agent=claude use codex fix",
        'model="gpt 5" fix',
        "model= fix",
        f"model={'m' * 201} fix",
        "model=a\x07b fix",
        "model=--flag fix",
        "model=a[1m]b fix",
        "repo=acme fix",
        "repo=acme/.. fix",
        "repo=https://me:secret@git.example/a fix",
        "repo=https://me:se/secret@git.example/a fix",
        "repo=me:secret@git.example/a fix",
        "repo=acme/.git fix",
        "repo=acme/...git fix",
        "repo=acme/.git.git fix",
        "repo=file:///etc fix",
        f"repo=https://{'a' * 64}.com/x/y fix",
        "repo=https://.example.com/x/y fix",
        "repo=-u/x fix",
        "branch=-x fix",
        "branch=a..b fix",
        "branch=a.lock fix",
        "branch=.a fix",
        "branch=a~1 fix",
        "branch=@ fix",
        "modle=opus fix",
        "settings agnet=claude",
    ],
)
def test_wrong_values_are_told(text: str) -> None:
    """Each is a problem, which never repeats a password."""
    problem = parse_options(text).problem
    assert problem
    assert "secret" not in problem


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("settings", SettingsCommand()),
        ("Settings\n", SettingsCommand()),
        ("settings reset", SettingsCommand(is_reset=True)),
        ("settings channel reset", SettingsCommand(scope=Scope.CHANNEL, is_reset=True)),
        ("settings channel", SettingsCommand(scope=Scope.CHANNEL)),
        ("settings use claude", SettingsCommand(options=RunOptions(agent="claude"))),
        ("use claude settings", SettingsCommand()),
        ("hey settings", SettingsCommand()),
        ("`settings` reset!", SettingsCommand(is_reset=True)),
        ("settings of the build are wrong", None),
        ("settings agent=claude fix it", None),
        ("what are the settings", None),
    ],
)
def test_settings_are_a_command_only_alone(text: str, command: SettingsCommand | None) -> None:
    """With words of a question behind it, it is a question."""
    assert parse_options(text).command == command


_PIECES = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["use", "with", "claude", "cluade:", "settings", "channel", "reset", "agent=",
                     "agent=claude", "model=x", "repo=a/b", "branch=", "/docker", "/provider"]),
)  # fmt: skip


@given(st.lists(_PIECES, max_size=6), st.sampled_from([" ", "\n", "\t "]))
def test_any_text_is_a_prompt_unchanged_or_begins_with_options(
    pieces: list[str], between: str
) -> None:
    """No text crashes; without an option nothing of it is lost, with one the prompt is the end of what was written."""
    text = between.join(pieces)
    options = parse_options(text)
    if options.said:
        assert not options.problem
        assert text.endswith(options.prompt)
    else:
        assert options.prompt == text


def test_many_options_are_read_in_time() -> None:
    """A message of Slack's greatest length does not nest or explode."""
    for piece in ("use claude settings ", "use codex ", "hey ", "settings a=b ", "use codex:", "`"):
        text = piece * (40_000 // len(piece))
        assert text.endswith(parse_options(text).prompt)

"""Which agent a message is addressed to, and which sentences only begin like an option."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_scripts.registry import agent_names, ambiguous_names
from app.runs.testing import MessageOptions, parse_options

_FIRST_WORD = re.compile(
    r"\W*_*(?:use|with|settings|hey|hi|hello|hallo|ok|okay|please)", re.IGNORECASE
)


@pytest.mark.parametrize(
    "text",
    [
        "use codex: fix",
        "use codex, fix",
        "use codex. fix",
        "use codex; fix",
        "use codex - fix",
        "use codex \u2014 fix",
        "use codex : fix",
        "use codex\nfix",
        "*use codex*: fix",
        "*use codex:* fix",
        "use `codex`: fix",
        "use *codex:* fix",
        "_With Codex_: fix",
        "\u200buse codex:\u200b fix",
        "hey use codex: fix",
        "Please, use codex: fix",
        "agent=codex. fix",
        "agent=codex; fix",
    ],
)
def test_an_agent_before_a_mark_is_cut_from_the_question(text: str) -> None:
    """However people write it; a greeting may stand before it."""
    options = parse_options(text)
    assert (dict(options.said), options.prompt, options.problem) == ({"agent": "codex"}, "fix", "")


@pytest.mark.parametrize(
    "text",
    [
        "use codex: use claude: fix",
        "use codex use claude: fix",
        "use codex, with claude: fix",
        "use codex: sandbox=local use claude - fix",
        "use codex: agent=claude fix",
    ],
)
def test_two_agents_are_told(text: str) -> None:
    """Only one of them would answer."""
    problem = "your message asks for two agents, codex and claude"
    assert (parse_options(text).problem, parse_options(text).prompt) == (problem, text)


@pytest.mark.parametrize(
    ("text", "agent"),
    [
        ("use codex fix the flaky test", "codex"),
        ("use codex to fix it", "codex"),
        ("use codex:fix it", "codex"),
        ("use claude code: fix it", "claude"),
        ("with claude as reviewer, check it", "claude"),
        ("With claude, fix it", "claude"),
        ("use codex with claude as reviewer", "codex"),
        ("use codex settings of vim are lost", "codex"),
        ("use codx fix it", "codx"),
    ],
)
def test_without_a_mark_the_agent_is_chosen_and_nothing_cut(text: str, agent: str) -> None:
    """It may be a sentence, so the agent reads all of it."""
    options = parse_options(text)
    assert (options.agent, options.prompt, options.problem) == (agent, text, "")


@pytest.mark.parametrize(
    ("text", "prompt"),
    [
        ("use codex: use gemini SDK to write", "use gemini SDK to write"),
        ("use codex: with claude as reviewer, check x", "with claude as reviewer, check x"),
        ("use codex: settings page is broken", "settings page is broken"),
        ("model=opus use codex fix it", "use codex fix it"),
    ],
)
def test_one_agent_is_addressed(text: str, prompt: str) -> None:
    """A second `use` or `with` without a mark belongs to the question."""
    options = parse_options(text)
    assert (options.agent, options.prompt, options.problem) == ("codex", prompt, "")


@pytest.mark.parametrize(
    "text",
    [
        "Settings reset themselves after every reboot, why?",
        "settings channel reset fails, why?",
        "settings DEBUG=True has no effect, why?",
        "Settings with claude are lost",
        "With code: raise X(1), why does it fail?",
        "use opcode: 0x3f",
        "use pilot users for this",
        "with claude being down, what now?",
        "With codex I get a timeout, why?",
        "use cursor pagination in the list endpoint",
        "use cusor pagination in the list endpoint",
        "With cursor, how do I page?",
        "Use anthropic SDK to write a script",
        "use gemini API: what is the limit?",
        "use codex's parser",
        "use codex/claude",
        "repr=False in a dataclass: what does it do?",
        "per=10 pages",
        "modal=true is ignored",
        "modal=open never closes",
        "models=3",
        "models=llama fails to load",
        "model_id=3 is not found",
        "model_id=gpt-5 is not found",
        "branches=3 why",
        "report=out/index.html is empty",
        "model=None raises TypeError, why?",
        "agent=Agent(x) raises TypeError, why?",
        "model=$MODEL is empty, why?",
        "sandbox=true in an iframe, why?",
        "branch==main in the workflow has no effect, why?",
        "model = None raises TypeError, why?",
        "model = build(x) raises TypeError, why?",
        "branch == main is never true",
        "model: opus is what?",
        "sandbox: is it safe?",
        "/demo returns 404, why?",
        "/clouds returns 404, why?",
        "/providers returns 404, why?",
        "hello world",
        "please fix it",
    ],
)
def test_an_ordinary_question_is_left_whole(text: str) -> None:
    """Neither refused nor beheaded, though it begins like an option."""
    options = parse_options(text)
    assert (dict(options.said), options.command) == ({}, None)
    assert (options.prompt, options.problem) == (text, "")


@given(
    st.text(st.characters(exclude_characters="=/:")).filter(
        lambda text: not _FIRST_WORD.match(text)
    )
)
def test_text_that_begins_like_no_option_is_the_prompt(text: str) -> None:
    """Without `=`, `/` and `:`, and with another first word than ours, nothing is read into it."""
    assert parse_options(text) == MessageOptions(prompt=text)


@given(
    st.sampled_from(agent_names()),
    st.sampled_from([":", ",", ";", ".", " -", "\n"]),
    st.text(max_size=20),
)
def test_a_marked_agent_is_cut_whatever_follows(agent: str, mark: str, question: str) -> None:
    """`use`, the name and the mark are gone; of the question nothing but blanks before it."""
    question = f"Q{question}"
    options = parse_options(f"use {agent}{mark} {question}")
    assert (dict(options.said), options.prompt) == ({"agent": agent}, question)


def test_ambiguous_names_are_agents() -> None:
    """No name is left behind when an agent goes."""
    assert ambiguous_names() < set(agent_names())

"""After a conversation: looks for keys and run tokens wherever they could have got to, outside of the sandbox and in it."""

import json
import re
from collections.abc import Mapping, Sequence

from app.brokerage.registry import PREFIX
from app.playground.slack.types import FakeSlackConfig
from app.playground.stack import OFFLINE_GEMINI_KEY, OFFLINE_MODEL_KEY, OFFLINE_OPENAI_KEY
from app.playground.traces.receiver import PLAYGROUND_SECRET_KEY
from tests.e2e.harness import Stage, text_of

KEYS = {
    "OpenAI's key": OFFLINE_OPENAI_KEY,
    "Gemini's key": OFFLINE_GEMINI_KEY,
    "Anthropic's key": OFFLINE_MODEL_KEY,
    "Slack's token": FakeSlackConfig().bot_token,
    "Langfuse's key": PLAYGROUND_SECRET_KEY,
}
LOOKS = 3
"""On a busy machine: codex waits for a command for ten seconds, and then answers without what it says."""
_LOOKED = re.compile(r"looked at \d+ there (True|False) hits (\d+)")
_TOKEN = re.compile(re.escape(PREFIX).encode() + rb"[A-Za-z0-9_-]{40,}")
_LOOK = (
    "import os;w=[bytes.fromhex(x) for x in '{words}'.split()];"
    "a=[os.path.join(d,x) for r in ('/work','/home','/orion','/tmp') for d,_,f in os.walk(r) for x in f];"
    "a=[p for p in a if os.path.isfile(p) and os.access(p,os.R_OK)];"
    "t=[open(p,'rb').read() for p in [*a,'/proc/self/environ','/proc/self/cmdline']];"
    "print('looked at',len(t),'there',sum(w[0] in x for x in t)>0,'hits',sum(y in x for x in t for y in w[1:]))"
)
"""Short: some agents type a command into a terminal, where a line has 4,096 characters."""


async def scan(
    stage: Stage, keys: Mapping[str, str], *, there: str, thread_ts: str
) -> Mapping[str, int]:
    """How many messages, files, traces and lines of the log were looked at; fails when one holds a key or a run's token.

    `there`: what stands in a file of the thread, and was shared; not to find it is a failure, too.
    """
    said = looked = ""
    for _ in range(LOOKS):
        looked = await _look_inside(stage, [there, *keys.values()], thread_ts=thread_ts)
        said = text_of(await stage.answer(looked, thread_ts=thread_ts))
        if _LOOKED.search(said):  # whatever it found: a hit is not looked for again
            break
    found_inside = _LOOKED.search(said)
    assert found_inside is not None, said
    assert found_inside.groups() == ("True", "0"), said
    # The thread's runs are one after the other, and so are their traces: with this one all have arrived.
    await stage.world.whole_trace((await stage.record(looked)).trace_id)
    found = _outside(stage) | {"traces": await _traces(stage)}
    assert any(there.encode() in text for text in found["Slack's files"])
    assert any(b"looked at" in text for text in found["traces"])
    hits = [
        f"{name} in {place}"
        for place, texts in found.items()
        for name, key in keys.items()
        if any(key.encode() in text for text in texts)
    ]
    hits += [
        f"a run's token in {place}"
        for place, texts in found.items()
        if any(_TOKEN.search(text) for text in texts)
    ]
    assert hits == []
    return {place: len(texts) for place, texts in found.items()}


async def _look_inside(stage: Stage, words: Sequence[str], *, thread_ts: str) -> str:
    look = _LOOK.format(words=" ".join(word.encode().hex() for word in words))
    return await stage.client.say(f'@Orion run: python3 -c "{look}"', thread_ts=thread_ts)


def _outside(stage: Stage) -> dict[str, list[bytes]]:
    fake_slack, orion = stage.world.fake_slack, stage.orion
    channels = fake_slack.workspace.messages.values()
    messages = [repr(message).encode() for channel in channels for message in channel.values()]
    files = [stored.content or b"" for stored in fake_slack.workspace.files.all()]
    state = [path.read_bytes() for path in orion.state_dir.rglob("*") if path.is_file()]
    return {
        "Slack's messages": messages,
        "Slack's files": files,
        "log": orion.log.encode().splitlines(),
        "files of the state directory": state,
    }


async def _traces(stage: Stage) -> list[bytes]:
    rows = await stage.world.traces()
    return [json.dumps(await stage.world.trace(row["id"])).encode() for row in rows]

"""Cursor's documented protocol in Slack: an executable that speaks it stands in for the one that nobody here has."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent_scripts.registry import create_adapter
from app.compose.providers import create_local
from app.runs.testing import Additions, AgentEnvironment
from app.settings.settings import load_settings
from sandbox_runtime import Agent
from sandbox_runtime.agent import SYMBOLIC_PATHS
from tests.e2e.harness import open_orion, open_world, text_of
from tests.e2e.orion_process import new_state_dir

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.agents,
    pytest.mark.bubblewrap,
    pytest.mark.timeout(120),
]

KEY = "crsr_0123456789abcdef0123456789"
CURSOR_AGENT = """\
#!/usr/bin/env python3
import json, os, pathlib, socket, sys, urllib.error, urllib.request
arguments, prompt = sys.argv[1:-1], sys.argv[-1]
session = "c5e55100-0000-4000-8000-000000000001"
chat = pathlib.Path.home() / ".cursor" / "chats" / session
if "--resume" in arguments:
    assert arguments[arguments.index("--resume") + 1] == session and chat.exists()
    known = chat.read_text()
else:
    known = ""
with socket.create_connection(("127.0.0.1", int(PORT)), 5) as maker:
    maker.sendall(os.environ["CURSOR_API_KEY"].encode() + b"\\n")
    word = maker.makefile().readline().strip()
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
try:
    relayed = opener.open(os.environ["ORION_RELAY"] + "/broker/mcp/none", timeout=5).status
except urllib.error.HTTPError as error:
    relayed = error.code
chat.parent.mkdir(parents=True, exist_ok=True)
chat.write_text(known + prompt)
text = f"{word}; relayed {relayed}; knew {len(known)}; key {os.environ['CURSOR_API_KEY']}; asked {prompt}"
message = {"role": "assistant", "content": [{"type": "text", "text": text}]}
for line in (
    {"type": "system", "subtype": "init", "session_id": session, "model": "Auto"},
    {"type": "assistant", "message": message, "session_id": session},
    {"type": "result", "subtype": "success", "is_error": False, "result": text, "session_id": session},
):
    print(json.dumps(line), flush=True)
"""
"""Asks its maker's server, which is a socket of the test, and the broker; keeps its chat in its home."""


@asynccontextmanager
async def open_maker() -> AsyncIterator[tuple[int, list[str]]]:
    """A port, and the keys that came there."""
    keys: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        keys.append((await reader.readline()).decode().strip())
        writer.write(b"from its maker\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], keys


async def prepare(state_dir: Path, port: int) -> None:
    """The environment that the maker's installer would make."""
    path = f"{SYMBOLIC_PATHS.environment}/.local/bin/cursor-agent"
    source = CURSOR_AGENT.replace("PORT", str(port)).encode()
    async with create_local(
        load_settings(env_file=None, given={"orion_state_dir": state_dir})
    ) as provider:
        name = AgentEnvironment(provider, create_adapter("cursor"), Additions()).name
        agent = await Agent.create("cursor", provider=provider)
        agent.add_files({path: source}, executable=True)
        await agent.prepare(name=name)


async def test_its_key_and_its_makers_servers_are_in_reach(tmp_path: Path) -> None:
    """The run is given the key, an open network and the broker; the follow-up resumes; outside, the key is masked."""
    prepared = new_state_dir(tmp_path)
    settings = {
        "ORION_AGENT": "cursor",
        "CURSOR_API_KEY": KEY,
        "ORION_CURSOR_KEY_IN_SANDBOX": "true",
    }
    async with open_maker() as (port, keys), open_world() as world:
        await prepare(prepared, port)
        async with open_orion(world, new_state_dir(tmp_path), prepared, **settings) as stage:
            ts = await stage.client.say("@Orion the word is heron")
            said = text_of(await stage.answer(ts))
            assert "from its maker; relayed 40" in said
            assert "knew 0" in said
            second = await stage.client.say("@Orion and now?", thread_ts=ts)
            again = text_of(await stage.answer(second, thread_ts=ts))
            assert "knew 0" not in again
            assert "heron" not in again
            assert stage.orion.log_lines("agent.session_lost") == []
            assert KEY not in said + again + stage.orion.log
        assert keys == [KEY, KEY]

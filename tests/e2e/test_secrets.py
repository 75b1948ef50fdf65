"""No key is inside, none leaves, and a sandbox reaches the model of its run and nothing else."""

import base64
import json
import secrets
from collections.abc import Sequence

import pytest

from app.playground.slack.types import YOU, FakeSlackConfig, JsonObject
from app.playground.traces.receiver import PLAYGROUND_SECRET_KEY
from tests.e2e.conftest import OpenOrion
from tests.e2e.harness import Stage, open_world

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(180)]

SCAN = """
import os, sys
words = [bytes.fromhex(word) for word in sys.argv[1:]]
seen = hits = 0
def look(path):
    global seen, hits
    try:
        with open(path, "rb") as file:
            data = file.read(4_000_000)
    except OSError:
        return
    seen += 1
    for number, word in enumerate(words):
        if word in data:
            hits += 1
            print("HIT", number, path)
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline", "mountinfo"):
        look(f"/proc/{pid}/{name}")
for root in ("/work", "/home", "/orion", "/tmp", "/broker", "/etc", "/run", "/var", "/root", "/dev/shm"):
    for directory, _, files in os.walk(root):
        for name in files:
            look(os.path.join(directory, name))
print("SCANNED", seen > 100, "HITS", hits)
"""
"""Runs inside. The words come in hexadecimal, so that the scan does not find itself."""

REACH = """
import http.client, json, os, socket, sys
def attempt(name, act):
    try:
        print(name, act())
    except OSError as exc:
        print(name, "fails")
port = int(sys.argv[1])
attempt("world", lambda: socket.create_connection(("127.0.0.1", port), 3))
attempt("outside", lambda: socket.create_connection(("192.0.2.1", 443), 3))
attempt("dns", lambda: socket.getaddrinfo("example.com", 443))
class Broker(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect("/broker/sock")
def ask(token, model, path="/broker/anthropic/v1/messages"):
    broker = Broker("broker")
    body = {"model": model, "max_tokens": 10, "messages": [{"role": "user", "content": "x"}]}
    headers = {"x-api-key": token, "anthropic-version": "2023-06-01"}
    broker.request("POST", path, json.dumps(body), headers)
    return broker.getresponse().status
def token():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            data = open(f"/proc/{pid}/environ", "rb").read()
        except OSError:
            continue
        for entry in data.split(b"\\0"):
            if entry.startswith(b"ANTHROPIC_API_KEY="):
                return entry.partition(b"=")[2].decode()
own = token()
forged = own[:-6] + ("AAAAAA" if own[-6:] != "AAAAAA" else "BBBBBB")
print("own", ask(own, "claude-sonnet-5-5"))
print("other-model", ask(own, "claude-opus-5"))
print("forged", ask(forged, "claude-sonnet-5-5"))
print("none", ask("", "claude-sonnet-5-5"))
print("other-path", ask(own, "claude-sonnet-5-5", "/broker/anthropic/v1/files"))
"""


async def test_no_secret_is_inside_or_leaves(start_orion: OpenOrion) -> None:
    """Model key, Slack token, signing secret and Langfuse key are nowhere but where they are used."""
    mark = secrets.token_hex(12)
    key = f"sk-ant-canary-{mark}"
    config = FakeSlackConfig(
        rate_limits="off", bot_token=f"xoxb-canary-{mark}", signing_secret=f"signing{mark}"
    )
    others = [config.bot_token, config.signing_secret, PLAYGROUND_SECRET_KEY]
    async with open_world(config) as world, start_orion(world, ANTHROPIC_API_KEY=key) as stage:
        found = await _run_inside(stage, SCAN, words=[key, *others])
        assert "SCANNED True HITS 0" in found, found
        assert {request["headers"]["x-api-key"] for request in await world.model_requests()} == {
            key
        }
        ts = await stage.client.say(f"is {key} my key?", channel=YOU)
        answer = await stage.answer(ts, channel=YOU)
        assert await stage.orion.terminate() == 0
        traces = json.dumps([await world.trace(row["id"]) for row in await world.traces()])
        shown = json.dumps([await stage.client.versions(answer), answer])
        assert "my key?" in traces
        assert "my key?" in shown
        paths = stage.orion.state_dir.glob("orion.db*")
        database = b"".join(path.read_bytes() for path in paths)
        assert b"my key?" in database
        for secret in (key, *others):
            assert secret not in stage.orion.log
            assert secret not in traces
            assert secret not in shown
        # A request is kept as the person wrote it, so the key that was said stands in it.
        assert not [secret for secret in others if secret.encode() in database]


@pytest.mark.long
async def test_the_scan_finds_what_is_there(start_orion: OpenOrion) -> None:
    """Otherwise the test above would prove nothing: a file's content, and the token of an agent that did not wait."""
    async with open_world() as world, start_orion(world) as stage:
        found = await _run_inside(
            stage,
            SCAN,
            words=["planted-7f3a", "sk-ant-orion-"],
            before="echo planted-7f3a > found.txt",
        )
    assert "HIT 0 /work/found.txt" in found, found
    assert "HIT 1 /proc/" in found, found


async def test_a_sandbox_reaches_its_model_and_nothing_else(start_orion: OpenOrion) -> None:
    """No network, no names; the broker takes this run's token for this run's model, and nothing else."""
    async with open_world() as world, start_orion(world) as stage:
        port = world.url.rpartition(":")[2]
        found = await _run_inside(stage, REACH, arguments=port)
    lines = dict(line.split(" ", 1) for line in found.splitlines() if " " in line)
    assert {name: lines.get(name) for name in ("world", "outside", "dns")} == {
        "world": "fails",
        "outside": "fails",
        "dns": "fails",
    }, found
    statuses = ("own", "other-model", "forged", "none", "other-path")
    assert [lines.get(name) for name in statuses] == ["200", "403", "401", "401", "404"], found


async def _run_inside(
    stage: Stage,
    script: str,
    *,
    words: Sequence[str] = (),
    arguments: str = "",
    before: str = "true",
) -> str:
    """What the script prints, run by the agent's shell in a sandbox, as the model was given it."""
    encoded = base64.b64encode(script.encode()).decode()
    given = " ".join([arguments, *(word.encode().hex() for word in words)])
    marker = secrets.token_hex(4)
    command = (
        f"{before}; echo {encoded} | base64 -d > /tmp/s.py; python3 /tmp/s.py {given}; : {marker}"
    )
    await stage.ask(f"run: {command}", channel=YOU)
    outputs = [
        _tool_output(request)
        for request in await stage.world.model_requests()
        if marker in json.dumps(request["body"]["messages"])
    ]
    return next(output for output in reversed(outputs) if output)


def _tool_output(request: JsonObject) -> str:
    content = request["body"]["messages"][-1]["content"]
    return "".join(
        str(block["content"])
        for block in content
        if isinstance(block, dict) and block["type"] == "tool_result"
    )

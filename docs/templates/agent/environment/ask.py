"""Asks a model, and runs the commands that it wants, until it answers: `python3 ask.py MODEL TOKEN_FILE < PROMPT`."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

MAX_CALLS = 30
REPLY_TIMEOUT_S = 600
"""For a command it is the supervisor that ends what takes too long, with all that it has started."""
SHELL = {
    "name": "shell",
    "description": "Runs a command and returns what it prints.",
    "input_schema": {
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
    },
}


def ask(question: dict[str, Any], token: str) -> list[dict[str, Any]]:
    """Returns the blocks of the model's reply."""
    request = urllib.request.Request(
        f"{os.environ['MODEL_URL']}/v1/messages",
        json.dumps({"max_tokens": 4000, "tools": [SHELL], **question}).encode(),
        {
            "x-api-key": token,
            "anthropic-version": "2023-06-01",
            "content-type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=REPLY_TIMEOUT_S) as response:
        reply: dict[str, Any] = json.load(response)
    return list(reply["content"])


def run(tool_id: str, command: str) -> dict[str, Any]:
    """Returns what the model is told of a command that it wanted."""
    tell(type="command", id=tool_id, command=command)
    done = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, errors="replace", check=False
    )
    output = done.stdout + done.stderr
    tell(type="output", id=tool_id, failed=done.returncode != 0, output=output)
    return {"type": "tool_result", "tool_use_id": tool_id, "content": output or "(nothing)"}


def tell(**record: object) -> None:
    """Prints a line for `output.py`."""
    print(json.dumps(record), flush=True)


model, token_path = sys.argv[1:]
token = Path(token_path).read_text()
messages: list[dict[str, Any]] = [{"role": "user", "content": sys.stdin.read()}]
for _ in range(MAX_CALLS):
    blocks = ask({"model": model, "messages": messages}, token)
    tell(type="message")
    for block in blocks:
        if block["type"] == "text":
            tell(type="text", text=block["text"])
    results = [
        run(block["id"], block["input"]["command"])
        for block in blocks
        if block["type"] == "tool_use"
    ]
    if not results:
        sys.exit()
    messages += [{"role": "assistant", "content": blocks}, {"role": "user", "content": results}]
sys.exit(f"no answer after {MAX_CALLS} calls of the model")

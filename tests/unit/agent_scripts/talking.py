"""The script that talks with a command line, and a small one in its place."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Talking:
    """What the script prints, and what it is told."""

    def __init__(self, process: "subprocess.Popen[bytes]", told: Path) -> None:
        self.process = process
        self._told = told

    def line(self) -> Mapping[str, Any]:
        assert self.process.stdout is not None
        record: Mapping[str, Any] = json.loads(self.process.stdout.readline())
        return record

    def rest(self) -> Sequence[Mapping[str, Any]]:
        assert self.process.stdout is not None
        return [json.loads(line) for line in self.process.stdout]

    def tell(self, name: str, text: str) -> None:
        (self._told / f"{name}.tmp").write_text(json.dumps({"text": text}))
        (self._told / f"{name}.tmp").rename(self._told / f"{name}.json")


@contextmanager
def open_talk(
    directory: Path, agent: str, cli: str, mode: str, request: Mapping[str, Any]
) -> Iterator[Talking]:
    """Starts the agent's script for a CLI whose source is `cli`, which gets `mode` as its argument."""
    source, path, told = (directory / name for name in ("cli.py", "request.json", "told"))
    source.write_text(cli)
    told.mkdir()
    path.write_text(json.dumps({**request, "told_path": str(told)}))
    script = Path(f"agent_scripts/agents/{agent}/inside/talk.py").resolve()
    argv = [sys.executable, "-I", str(script), str(path), sys.executable, str(source), mode]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        try:
            yield Talking(process, told)
        finally:
            process.kill()

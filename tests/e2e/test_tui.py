"""`orion tui` in a real terminal: what stands on its screens, line by line, and that it leaves the terminal as it was."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.settings.settings import host_environment
from app.store.runs import open_store
from sandbox_runtime import SandboxSpec, open_sandbox
from sandbox_runtime.providers.local.provider import LocalProvider
from tests.unit.operators.building import fill
from tests.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.terminal, pytest.mark.timeout(120)]

SCREENS = Path("tests/data/tui")
"""Made anew with ORION_TUI_SCREENS=true, and looked at."""
MAKES_ANEW = bool(host_environment().get("ORION_TUI_SCREENS"))


@dataclass(frozen=True, kw_only=True)
class Terminal:
    """A tmux server of its own with one pane."""

    socket: str

    def run(self, *arguments: str) -> str:
        argv = ["tmux", "-L", self.socket, *arguments]
        return subprocess.run(argv, capture_output=True, text=True, timeout=10, check=True).stdout

    def screen(self) -> str:
        return self.run("capture-pane", "-p").rstrip()

    def press(self, *keys: str) -> None:
        self.run("send-keys", *keys)

    async def until(self, *words: str) -> str:
        await until(lambda: all(word in self.screen() for word in words))
        return self.screen()


@pytest.fixture
async def state_dir(tmp_path: Path) -> Path:
    async with open_store(tmp_path / "orion.db") as store:
        await fill(store)
        await store.leases.leave()
    return tmp_path


@pytest.fixture
def terminal(state_dir: Path) -> Iterator[Terminal]:
    terminal = Terminal(socket=f"orion-{os.getpid()}-{state_dir.name[:20]}")
    settings = {
        "ORION_STATE_DIR": str(state_dir),
        "ORION_SANDBOX": "local",
        "ANTHROPIC_API_KEY": "",
    }
    said = " ".join(f"{name}={shlex.quote(value)}" for name, value in settings.items())
    command = f"{said} {shlex.quote(sys.executable)} -P -m app.cli tui; echo over; exec cat"
    terminal.run("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", command)
    try:
        yield terminal
    finally:
        terminal.run("kill-server")


def settled(screen: str) -> str:
    """A screen without what is another one each time: ages, and ids."""
    lines = (line.rstrip() for line in screen.splitlines())
    return "\n".join(re.sub(r"\b\d+[smhd]\b *", "N ", line).rstrip() for line in lines) + "\n"


async def compare(terminal: Terminal, name: str, *words: str) -> None:
    """Once these words stand there: also what is drawn a moment later."""
    screen = await terminal.until(*words)
    path = SCREENS / f"{name}.txt"
    if MAKES_ANEW:
        path.write_text(settled(screen))
    with suppress(TimeoutError):
        await until(lambda: settled(terminal.screen()) == path.read_text(), timeout_s=10)
    assert settled(terminal.screen()) == path.read_text()


async def test_its_screens(terminal: Terminal) -> None:
    """The board, one run, a question's window, the sandboxes; and the terminal is its person's again."""
    await compare(terminal, "board", "5 shown", "accepted", "q Quit")
    terminal.press("Enter")
    await compare(terminal, "run", "Steps", "esc Back")
    terminal.press("Escape")
    await terminal.until("5 shown")
    terminal.press("n")
    await compare(terminal, "ask", "in local (ctrl+p", "q Quit")
    terminal.press("Escape")
    await terminal.until("deploy the shop")
    terminal.press("c")
    await compare(terminal, "set-up", "set up vercel", "q Quit")
    terminal.press("Escape")
    await terminal.until("deploy the shop")
    terminal.press("Tab")
    await compare(terminal, "sandboxes", "Region", "x Remove")
    terminal.press("q")
    await terminal.until("over")


@pytest.mark.bubblewrap
async def test_a_sandbox_at_work(state_dir: Path, terminal: Terminal) -> None:
    """What it holds of the memory is shown; another provider's filter hides it."""
    async with (
        LocalProvider(state_dir) as provider,
        open_sandbox(provider, SandboxSpec()) as sandbox,
    ):
        await sandbox.spawn(["python3", "-c", _HOLDING])
        await terminal.until("5 shown")
        terminal.press("Tab")
        shown = await terminal.until("LOC", "(no thread)", "running")
        assert re.search(r"LOC.*\(no thread\).*running.* \d+M ", shown)
        terminal.press("f")
        terminal.press("provider=docker", "Enter")
        await until(lambda: "(no thread)" not in terminal.screen())
        terminal.press("q")
        await terminal.until("over")


_HOLDING = "import time; held = b'x' * 80_000_000; time.sleep(100)"


async def test_what_is_pasted_behind_a_key_is_not_taken_for_keys(terminal: Terminal) -> None:
    """A filter, and a question, however fast they come: `q` in them leaves nothing."""
    await terminal.until("5 shown")
    for _ in range(3):
        terminal.press("f", "user=fnq", "Enter")
        await terminal.until("[user=fnq]")
        terminal.press("f", *["BSpace"] * 8, "Enter")
        await terminal.until("5 shown")
        terminal.press("n", "/local quite a funny question")
        await terminal.until("/local quite a funny question")
        terminal.press("Escape")
        await until(lambda: "quite" not in terminal.screen())
    terminal.press("q")
    await terminal.until("over")


async def test_without_colours_and_in_a_small_one(terminal: Terminal) -> None:
    """It is drawn anew at each size, and its keys work."""
    await terminal.until("5 shown")
    terminal.run("resize-window", "-x", "20", "-y", "8")
    await terminal.until("Orion")
    terminal.run("resize-window", "-x", "100", "-y", "30")
    await terminal.until("5 shown")
    terminal.press("q")
    await terminal.until("over")

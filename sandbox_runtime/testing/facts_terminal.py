"""Conformance: commands on a terminal, for a person."""

import asyncio
import hashlib

from sandbox_runtime.provider import SandboxProvider, Terminal
from sandbox_runtime.testing.expectations import (
    TIMEOUT_S,
    expect,
    expect_equal,
    fact,
    fresh,
    sh,
)
from sandbox_runtime.types import Capability, TerminalSize

SIZE = TerminalSize(rows=31, columns=99)


async def _until(terminal: Terminal, word: str) -> str:
    """What it shows up to and with the word."""
    shown = ""
    async with asyncio.timeout(TIMEOUT_S):
        while word not in shown:
            data = await terminal.read()
            expect(data != b"", f"ended before {word!r}: {shown!r}")
            shown += data.decode("utf-8", "replace")
    return shown


async def _rest(terminal: Terminal) -> str:
    shown = b""
    async with asyncio.timeout(TIMEOUT_S):
        while data := await terminal.read():
            shown += data
    return shown.decode("utf-8", "replace")


async def check_terminal_is_one(provider: SandboxProvider) -> None:
    """Standard streams are a terminal of the size asked for, in the work directory; the exit code is the command's."""
    async with fresh(provider) as sandbox:
        script = 'test -t 0 && test -t 2 && stty size && pwd && echo "$WORD"; exit 7'
        terminal = await sandbox.open_terminal(["sh", "-c", script], size=SIZE, env={"WORD": "yes"})
        shown = await _rest(terminal)
        expect_equal(await terminal.close(), 7)
        expect_equal(shown.split(), ["31", "99", sandbox.paths.work, "yes"])


async def check_terminal_is_typed_at(provider: SandboxProvider) -> None:
    """What is typed arrives, Ctrl-C interrupts what runs, a new size is seen."""
    async with fresh(provider) as sandbox:
        terminal = await sandbox.open_terminal(["sh"], size=SIZE)
        await terminal.write(b"echo $((6 * 7))\n")
        await _until(terminal, "42\r\n")
        await terminal.write(b"sh -c 'echo ready; exec sleep 60'; echo $((1 + 1))over\n")
        await _until(terminal, "ready\r\n")
        await terminal.write(b"\x03")
        await terminal.resize(TerminalSize(rows=10, columns=20))
        await terminal.write(b"stty size\n")
        shown = await _until(terminal, "10 20\r\n")
        expect("2over" not in shown, shown)
        await terminal.write(b"exit 3\n")
        await _rest(terminal)
        expect_equal(await terminal.close(), 3)


async def check_terminal_takes_a_long_text(provider: SandboxProvider) -> None:
    """What is typed faster than it is read arrives whole."""
    async with fresh(provider) as sandbox:
        typed = b"0123456789abcde\n" * 4096
        script = f"stty raw -echo; echo ready; sleep 0.5; head -c {len(typed)} | sha256sum"
        terminal = await sandbox.open_terminal(["sh", "-c", script], size=SIZE)
        await _until(terminal, "ready")
        async with asyncio.timeout(TIMEOUT_S):
            await terminal.write(typed)
        shown = await _rest(terminal)
        await terminal.close()
        expect(hashlib.sha256(typed).hexdigest() in shown, shown)


async def check_closed_terminal_leaves_nothing(provider: SandboxProvider) -> None:
    """Whoever closes it ends the command and all it started, also what ignores that its terminal went; twice is fine."""
    async with fresh(provider) as sandbox:
        beat = "setsid sh -c 'while :; do echo >> beat; sleep 0.05; done'"
        script = (
            f"trap '' HUP TERM; {beat} & until test -s beat; do sleep 0.05; done; echo up; wait"
        )
        terminal = await sandbox.open_terminal(["sh", "-c", script], size=SIZE)
        await _until(terminal, "up")
        async with asyncio.timeout(TIMEOUT_S):
            await terminal.close()
        await terminal.close()
        before = (await sh(sandbox, "wc -l < beat")).text
        await asyncio.sleep(0.3)
        expect_equal((await sh(sandbox, "wc -l < beat")).text, before)


TERMINAL_FACTS = (
    fact(check_terminal_is_one, needs=Capability.TERMINAL),
    fact(check_terminal_is_typed_at, needs=Capability.TERMINAL),
    fact(check_terminal_takes_a_long_text, needs=Capability.TERMINAL),
    fact(check_closed_terminal_leaves_nothing, needs=Capability.TERMINAL),
)

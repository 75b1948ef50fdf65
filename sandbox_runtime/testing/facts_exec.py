"""Conformance: commands, their input, output and surroundings."""

import asyncio
import hashlib

from sandbox_runtime.command import TRUNCATION_MARK
from sandbox_runtime.errors import SandboxErrorCode
from sandbox_runtime.provider import Sandbox, SandboxProvider, Terminal
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.testing.expectations import (
    TIMEOUT_S,
    expect,
    expect_code,
    expect_equal,
    expect_raises,
    fact,
    fresh,
    python,
    sandbox_fact,
    sh,
)
from sandbox_runtime.types import Capability, TerminalSize

_MIB = 1024 * 1024
_PRINT_ARGUMENTS = "import sys; sys.stdout.write(repr(sys.argv[1:]))"


async def check_exit_code(sandbox: Sandbox) -> None:
    """The exit code is the command's, for success and failure."""
    for code in (0, 1, 3, 42, 255):
        expect_equal((await sh(sandbox, f"exit {code}")).exit_code, code)


async def check_signal_is_a_result(sandbox: Sandbox) -> None:
    """A command that ends itself by SIGTERM gives 143, not a timeout."""
    expect_equal((await sh(sandbox, "kill -TERM $$")).exit_code, 143)


async def check_sigkill_is_a_result(sandbox: Sandbox) -> None:
    """A command that dies by SIGKILL gives 137, not an error."""
    expect_equal((await sh(sandbox, "kill -KILL $$")).exit_code, 137)


async def check_missing_command(sandbox: Sandbox) -> None:
    """A command that does not exist exits with 127 and raises nothing."""
    result = await sandbox.exec(["no-such-command"], timeout_s=TIMEOUT_S)
    expect_equal(result.exit_code, 127)
    expect(result.stderr, result)


async def check_not_executable(sandbox: Sandbox) -> None:
    """A file that is not executable gives 126."""
    await sandbox.write_file("plain.txt", b"not a program")
    result = await sandbox.exec([f"{sandbox.paths.work}/plain.txt"], timeout_s=TIMEOUT_S)
    expect_equal(result.exit_code, 126)


async def check_streams_are_split(sandbox: Sandbox) -> None:
    """Stdout and stderr arrive apart."""
    result = await sh(sandbox, "echo out; echo err >&2")
    expect_equal((result.stdout, result.stderr), (b"out\n", b"err\n"))


async def check_streams_merge_in_order(sandbox: Sandbox) -> None:
    """Merged, they arrive in the order written."""
    script = "echo 1; echo 2 >&2; echo 3; echo 4 >&2"
    result = await sandbox.exec(["sh", "-c", script], timeout_s=TIMEOUT_S, merge_output=True)
    expect_equal((result.stdout, result.stderr), (b"1\n2\n3\n4\n", b""))


async def check_standard_streams_open_by_name(sandbox: Sandbox) -> None:
    """Scripts that write to /dev/stderr and /dev/stdout work."""
    result = await sh(sandbox, "echo o > /dev/stdout; echo e > /dev/stderr")
    expect_equal((result.stdout, result.stderr), (b"o\n", b"e\n"))


async def check_utf8_output(sandbox: Sandbox) -> None:
    """Text beyond ASCII arrives unchanged."""
    result = await sh(sandbox, "printf '%s' 'grüße 漢字 🎉'")
    expect_equal(result.text, "grüße 漢字 🎉")


async def check_binary_output(sandbox: Sandbox) -> None:
    """Bytes that are no text arrive unchanged."""
    result = await python(sandbox, "import sys; sys.stdout.buffer.write(bytes(range(256)))")
    expect_equal(result.stdout, bytes(range(256)))


async def check_output_is_bounded(sandbox: Sandbox) -> None:
    """Of too much output the beginning is kept, and marked; the command still ends normally."""
    argv = ["sh", "-c", "head -c 10485760 /dev/zero; exit 5"]
    result = await sandbox.exec(argv, timeout_s=TIMEOUT_S, max_output_bytes=_MIB)
    expect_equal(result.exit_code, 5)
    expect_equal(result.stdout, bytes(_MIB) + TRUNCATION_MARK)
    expect_equal((result.stdout_truncated, result.stderr_truncated), (True, False))


async def check_output_at_the_bound(sandbox: Sandbox) -> None:
    """Output of exactly the bound is whole and not marked."""
    argv = ["head", "-c", "1000", "/dev/zero"]
    result = await sandbox.exec(argv, timeout_s=TIMEOUT_S, max_output_bytes=1000)
    expect_equal((result.stdout, result.stdout_truncated), (bytes(1000), False))


async def check_stdin(sandbox: Sandbox) -> None:
    """Input arrives byte by byte as given."""
    result = await sandbox.exec(["cat"], timeout_s=TIMEOUT_S, stdin=b"one\ntwo\0three\xff")
    expect_equal(result.stdout, b"one\ntwo\0three\xff")


async def check_large_stdin(sandbox: Sandbox) -> None:
    """8 MiB of input pass through a command unchanged."""
    data = b"0123456789abcdef" * (512 * 1024)
    result = await sandbox.exec(["cat"], timeout_s=TIMEOUT_S, stdin=data)
    expect(result.stdout == data, len(result.stdout))


async def check_unread_stdin(sandbox: Sandbox) -> None:
    """A command that ignores a large input is not disturbed by it."""
    result = await sandbox.exec(["true"], timeout_s=TIMEOUT_S, stdin=b"x" * (4 * _MIB))
    expect_equal(result.exit_code, 0)


async def check_no_stdin_is_closed(sandbox: Sandbox) -> None:
    """A command that reads its input when none was given sees its end at once."""
    result = await sandbox.exec(["cat"], timeout_s=TIMEOUT_S)
    expect_equal((result.exit_code, result.stdout), (0, b""))


async def check_arguments_arrive_unchanged(sandbox: Sandbox) -> None:
    """No shell ever sees the arguments."""
    arguments = [
        "",
        " ",
        "a b",
        "'\"",
        "$HOME",
        "`id`",
        "a\nb",
        "*",
        "--",
        "-n",
        "ü漢🎉",
        "\\",
        ";ls",
    ]
    result = await python(sandbox, _PRINT_ARGUMENTS, *arguments)
    expect_equal(result.text, repr(arguments))


async def check_large_argument(sandbox: Sandbox) -> None:
    """100 kB in one argument arrive whole."""
    result = await python(sandbox, "import sys; print(len(sys.argv[1]))", "x" * 100_000)
    expect_equal(result.text, "100000\n")


async def check_huge_argument_is_a_result(sandbox: Sandbox) -> None:
    """Past what the system takes, the command fails to start; nothing is raised."""
    result = await sandbox.exec(["echo", "x" * 4 * _MIB], timeout_s=TIMEOUT_S)
    expect_equal(result.exit_code, 126)
    expect(result.stderr, result)


async def check_bad_arguments(sandbox: Sandbox) -> None:
    """An empty command and a NUL are the caller's mistakes."""
    with expect_raises(ValueError):
        await sandbox.exec([], timeout_s=TIMEOUT_S)
    with expect_raises(ValueError):
        await sandbox.exec(["echo", "a\0b"], timeout_s=TIMEOUT_S)


async def check_env_is_passed(sandbox: Sandbox) -> None:
    """Variables arrive unchanged, whatever is in them."""
    env = {"PLAIN": "1", "ODD": "a b\n'\"$HOME ü=", "EMPTY": ""}
    code = "import os; print([os.environ.get(n) for n in ('PLAIN', 'ODD', 'EMPTY')])"
    result = await sandbox.exec(["python3", "-c", code], timeout_s=TIMEOUT_S, env=env)
    expect_equal(result.text, f"{list(env.values())}\n")


async def check_home_is_set(sandbox: Sandbox) -> None:
    """HOME is the sandbox's home, and writable."""
    result = await sh(sandbox, 'printf %s "$HOME"; touch "$HOME/writable"')
    expect_equal((result.exit_code, result.text), (0, sandbox.paths.home))


async def check_cwd_default(sandbox: Sandbox) -> None:
    """Commands start in the work directory."""
    expect_equal((await sh(sandbox, "pwd")).text, f"{sandbox.paths.work}\n")


async def check_cwd_relative(sandbox: Sandbox) -> None:
    """A relative directory is below the work directory."""
    await sh(sandbox, "mkdir -p 'sub dir/-x'")
    result = await sandbox.exec(["pwd"], timeout_s=TIMEOUT_S, cwd="sub dir/-x")
    expect_equal(result.text, f"{sandbox.paths.work}/sub dir/-x\n")


async def check_cwd_absolute(sandbox: Sandbox) -> None:
    """An absolute directory is taken as it is."""
    result = await sandbox.exec(["pwd"], timeout_s=TIMEOUT_S, cwd="/usr")
    expect_equal(result.text, "/usr\n")


async def check_cwd_missing(sandbox: Sandbox) -> None:
    """A missing directory is the command's failure, with a reason."""
    result = await sandbox.exec(["true"], timeout_s=TIMEOUT_S, cwd="no-such-directory")
    expect(result.exit_code in {126, 127} and result.stderr, result)


async def check_concurrent_execs(sandbox: Sandbox) -> None:
    """Eight at once run at once, each with its own output."""
    found: dict[int, str] = {}

    async def one(number: int) -> None:
        # Each waits for all the others, so one after the other would never end.
        script = f"mkdir m{number}; until [ -d m0 -a -d m1 -a -d m6 -a -d m7 ]; do sleep 0.02; done; echo {number}"
        found[number] = (await sh(sandbox, script)).text

    async with open_task_group() as group:
        for number in range(8):
            group.create_task(one(number))
    expect_equal(found, {number: f"{number}\n" for number in range(8)})


async def check_workspace_lasts_between_execs(sandbox: Sandbox) -> None:
    """What one command writes into work and home, the next one reads."""
    await sh(sandbox, 'echo kept > file; echo also > "$HOME/file"')
    expect_equal((await sh(sandbox, 'cat file "$HOME/file"')).text, "kept\nalso\n")


async def check_python_is_there(sandbox: Sandbox) -> None:
    """python3 is on the PATH and complete."""
    expect_equal((await python(sandbox, "import sys, ssl; print(sys.version_info[0])")).text, "3\n")


async def check_timeout_raises(sandbox: Sandbox) -> None:
    """A command over its time raises EXEC_TIMEOUT."""
    with expect_code(SandboxErrorCode.EXEC_TIMEOUT):
        await sandbox.exec(["sleep", "30"], timeout_s=0.2)


EXEC_FACTS = tuple(
    map(
        sandbox_fact,
        (
            check_exit_code,
            check_signal_is_a_result,
            check_sigkill_is_a_result,
            check_missing_command,
            check_not_executable,
            check_streams_are_split,
            check_streams_merge_in_order,
            check_standard_streams_open_by_name,
            check_utf8_output,
            check_binary_output,
            check_output_is_bounded,
            check_output_at_the_bound,
            check_stdin,
            check_large_stdin,
            check_unread_stdin,
            check_no_stdin_is_closed,
            check_arguments_arrive_unchanged,
            check_large_argument,
            check_huge_argument_is_a_result,
            check_bad_arguments,
            check_env_is_passed,
            check_home_is_set,
            check_cwd_default,
            check_cwd_relative,
            check_cwd_absolute,
            check_cwd_missing,
            check_concurrent_execs,
            check_workspace_lasts_between_execs,
            check_python_is_there,
            check_timeout_raises,
        ),
    )
)


SIZE = TerminalSize(rows=31, columns=99)


async def _until(terminal: Terminal, word: str) -> str:
    """Returns what it shows up to and with the word."""
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

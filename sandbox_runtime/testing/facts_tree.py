"""Conformance: process trees die when they must, spawned commands stream and can be killed."""

import asyncio
import time

from sandbox_runtime.errors import SandboxErrorCode
from sandbox_runtime.provider import Process, Sandbox
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.testing.expectations import (
    TIMEOUT_S,
    expect,
    expect_code,
    expect_equal,
    sandbox_fact,
    sh,
)
from sandbox_runtime.types import ExecEvent, ExecExited, ExecOutput, OutputStream

# Each child beats: it appends to a file of its own, so a survivor shows.
_BEAT = "while :; do echo >> beat-$0; sleep 0.02; done"
_FAMILY = f"""
trap '' TERM HUP INT
sh -c '{_BEAT}' child &
setsid sh -c '{_BEAT}' session &
( ( trap "" TERM HUP; sh -c '{_BEAT}' orphan ) & )
nohup sh -c '{_BEAT}' nohup >/dev/null 2>&1 &
sh -c '{_BEAT}' main
"""
_BEATS = ("child", "session", "orphan", "nohup", "main")
_SETTLE_S = 0.3
_MAX_KILL_S = 5.0


async def _expect_family_dead(sandbox: Sandbox) -> None:
    count = 'for f in beat-*; do printf \'%s \' "$f"; wc -l < "$f"; done'
    before = (await sh(sandbox, count)).text
    expect(all(f"beat-{name} " in before for name in _BEATS), before)
    await asyncio.sleep(_SETTLE_S)
    expect_equal((await sh(sandbox, count)).text, before)


async def _until_family_beats(sandbox: Sandbox) -> None:
    files = " ".join(f"-s beat-{name} -a" for name in _BEATS).removesuffix(" -a")
    await sh(sandbox, f"until [ {files} ]; do sleep 0.02; done")


async def check_timeout_kills_the_tree(sandbox: Sandbox) -> None:
    """No child outlives a timeout: not in its own session, deaf to signals, nor orphaned."""
    with expect_code(SandboxErrorCode.EXEC_TIMEOUT):
        await sandbox.exec(["sh", "-c", _FAMILY], timeout_s=2.0)
    await _expect_family_dead(sandbox)


async def check_cancellation_kills_the_tree(sandbox: Sandbox) -> None:
    """No child outlives a cancellation."""

    async def run() -> None:
        await sandbox.exec(["sh", "-c", _FAMILY], timeout_s=TIMEOUT_S)

    async with open_task_group() as group:
        task = group.create_task(run())
        await _until_family_beats(sandbox)
        task.cancel()
    await _expect_family_dead(sandbox)


async def check_cancellation_at_any_moment(sandbox: Sandbox) -> None:
    """A cancel while the command is only just starting leaves nothing either."""

    async def run(number: int) -> None:
        await sandbox.exec(["sh", "-c", _BEAT, str(number)], timeout_s=TIMEOUT_S)

    for number in range(12):
        async with open_task_group() as group:
            task = group.create_task(run(number))
            await asyncio.sleep(number * 0.003)
            task.cancel()
    count = "cat beat-* 2>/dev/null | wc -l"
    before = (await sh(sandbox, count)).text
    await asyncio.sleep(_SETTLE_S)
    expect_equal((await sh(sandbox, count)).text, before)


async def check_kill_ends_the_tree(sandbox: Sandbox) -> None:
    """Kill ends the whole tree within 5 s, and the events end with 137."""
    process = await sandbox.spawn(["sh", "-c", _FAMILY])
    await _until_family_beats(sandbox)
    started = time.monotonic()
    await process.kill()
    duration_s = time.monotonic() - started
    expect(duration_s <= _MAX_KILL_S, duration_s)
    await _expect_family_dead(sandbox)
    expect_equal((await _rest(process))[-1], ExecExited(exit_code=137))


async def check_kill_at_any_moment(sandbox: Sandbox) -> None:
    """A kill while the command is only just starting ends it as a kill, never as a failed start."""
    for number in range(12):
        process = await sandbox.spawn(["sleep", "30"])
        await asyncio.sleep(number * 0.003)
        await process.kill()
        expect_equal(await _rest(process), [ExecExited(exit_code=137)])


async def check_kill_is_idempotent(sandbox: Sandbox) -> None:
    """Killing twice is fine."""
    process = await sandbox.spawn(["sleep", "30"])
    await process.kill()
    await process.kill()


async def check_kill_after_the_end(sandbox: Sandbox) -> None:
    """Killing what has ended is fine."""
    process = await sandbox.spawn(["true"])
    expect_equal(await _rest(process), [ExecExited(exit_code=0)])
    await process.kill()


async def check_detach_ends_the_reading(sandbox: Sandbox) -> None:
    """Whoever reads is at the end at once, without an exit; the command goes on, its output read by nobody."""
    process = await sandbox.spawn(["sh", "-c", f"echo begun; {_BEAT}", "read"])
    seen: list[ExecEvent] = []

    async def read() -> None:
        seen.extend([event async for event in process.events()])

    async with asyncio.timeout(TIMEOUT_S), open_task_group() as group:
        group.create_task(read())
        await sh(sandbox, "until [ -s beat-read ]; do sleep 0.02; done")
        await process.detach()
        await process.detach()
    expect(not any(isinstance(event, ExecExited) for event in seen), seen)
    count = "wc -l < beat-read"
    before = int((await sh(sandbox, count)).text)
    await asyncio.sleep(_SETTLE_S)
    expect(int((await sh(sandbox, count)).text) > before, before)


async def check_detach_before_the_reading(sandbox: Sandbox) -> None:
    """Nobody needs to have read: then there is nothing to be read, also where output has come already."""
    for number in range(8):
        process = await sandbox.spawn(["sh", "-c", "echo begun; sleep 60"])
        await asyncio.sleep(number * 0.003)
        await process.detach()
        expect_equal(await _rest(process), [])
        await process.kill()


async def check_detached_commands_are_killed(sandbox: Sandbox) -> None:
    """A kill ends the whole tree of a command that nobody reads any more."""
    process = await sandbox.spawn(["sh", "-c", _FAMILY])
    await _until_family_beats(sandbox)
    await process.detach()
    await process.kill()
    await _expect_family_dead(sandbox)


async def check_spawn_output_before_exit(sandbox: Sandbox) -> None:
    """Output arrives while the command still runs, each stream under its name, the exit last and once."""
    script = "echo out; until [ -e go ]; do sleep 0.02; done; echo err >&2; exit 4"
    process = await sandbox.spawn(["sh", "-c", script])
    seen: list[ExecEvent] = []
    async with asyncio.timeout(TIMEOUT_S):
        async for event in process.events():
            seen.append(event)
            if len(seen) == 1:
                await sandbox.write_file("go", b"")
    expect_equal(
        seen,
        [
            ExecOutput(stream=OutputStream.STDOUT, data=b"out\n"),
            ExecOutput(stream=OutputStream.STDERR, data=b"err\n"),
            ExecExited(exit_code=4),
        ],
    )


async def check_spawn_takes_stdin_env_and_cwd(sandbox: Sandbox) -> None:
    """A spawned command gets input, variables and directory as an exec does."""
    process = await sandbox.spawn(
        ["sh", "-c", 'pwd; echo "$NAME"; cat'], cwd="/usr", env={"NAME": "value"}, stdin=b"input"
    )
    events = await _rest(process)
    data = b"".join(event.data for event in events if isinstance(event, ExecOutput))
    expect_equal(data, b"/usr\nvalue\ninput")


async def check_spawn_missing_command(sandbox: Sandbox) -> None:
    """A spawned command that does not exist exits with 127."""
    events = await _rest(await sandbox.spawn(["no-such-command"]))
    expect_equal(events[-1], ExecExited(exit_code=127))


async def check_spawn_loses_nothing(sandbox: Sandbox) -> None:
    """All of a large output arrives, in order."""
    process = await sandbox.spawn(["seq", "1", "500000"])
    events = await _rest(process)
    data = b"".join(event.data for event in events if isinstance(event, ExecOutput))
    expect(data == b"".join(b"%d\n" % n for n in range(1, 500_001)), len(data))


async def check_spawn_back_pressure(sandbox: Sandbox) -> None:
    """A consumer that does not read stops the command instead of filling the memory."""
    script = "head -c 67108864 /dev/zero; touch finished"
    process = await sandbox.spawn(["sh", "-c", script])
    await asyncio.sleep(1.0)
    expect_equal((await sh(sandbox, "[ -e finished ]")).exit_code, 1)
    events = await _rest(process)
    expect_equal(sum(len(e.data) for e in events if isinstance(e, ExecOutput)), 64 * 1024 * 1024)


async def check_spawned_commands_run_side_by_side(sandbox: Sandbox) -> None:
    """A spawned command does not keep others from running."""
    process = await sandbox.spawn(["sleep", "30"])
    expect_equal((await sh(sandbox, "echo hello")).text, "hello\n")
    await process.kill()


async def _rest(process: Process) -> list[ExecEvent]:
    async with asyncio.timeout(TIMEOUT_S):
        return [event async for event in process.events()]


TREE_FACTS = tuple(
    map(
        sandbox_fact,
        (
            check_timeout_kills_the_tree,
            check_cancellation_kills_the_tree,
            check_cancellation_at_any_moment,
            check_kill_ends_the_tree,
            check_kill_at_any_moment,
            check_kill_is_idempotent,
            check_kill_after_the_end,
            check_detach_ends_the_reading,
            check_detach_before_the_reading,
            check_detached_commands_are_killed,
            check_spawn_output_before_exit,
            check_spawn_takes_stdin_env_and_cwd,
            check_spawn_missing_command,
            check_spawn_loses_nothing,
            check_spawn_back_pressure,
            check_spawned_commands_run_side_by_side,
        ),
    )
)

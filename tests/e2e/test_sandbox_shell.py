"""`orion sandboxes logs, attach, shell, resume` beside a running service, with local sandboxes."""

import asyncio
import json
import sys
import time
from pathlib import Path

import pytest

from sandbox_runtime.task_group import open_task_group
from tests.e2e.conftest import OpenOrion
from tests.e2e.harness import Stage, open_world, text_of
from tests.e2e.typing_person import sitting_at

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(180)]

LOOK_AROUND = """\
cat notes
env | grep -i -e token -e key -e secret && echo LEAKED
ls /broker 2> /dev/null && echo LEAKED
grep -rlI -e xoxb- /orion "$HOME" 2> /dev/null && echo LEAKED
python3 - <<'END'
import socket
try:
    socket.create_connection(("192.0.2.1", 443), 2)
except OSError as exc:
    print("network:", exc.strerror)
END
echo of a person >> notes
exit 4
"""


async def script(stage: Stage, name: str, text: str) -> tuple[int, str]:
    """`orion sandboxes shell` with a script on stdin; exit code, and all that it printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "app.cli", "sandboxes", "shell", name),
        env=stage.orion.environment,
        cwd=Path(stage.orion.state_dir).parent,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate(text.encode())
    assert process.returncode is not None
    return process.returncode, said.decode()


async def name_of(stage: Stage) -> str:
    """Of the thread that was used last."""
    rows = json.loads((await stage.cli("sandboxes", "list", "--json"))[1])
    return str(rows[0]["name"])


async def has_begun(stage: Stage, ts: str) -> None:
    """Returns when the run of a message is under way."""
    async with asyncio.timeout(60):
        while True:
            run = await stage.orion.run(stage.run_id(ts))
            if run is not None and run.attempt > 0:
                return
            await asyncio.sleep(0.1)


@pytest.mark.long
async def test_logs_and_attach(shared: Stage) -> None:
    """A finished run's lines, a going one's as they come, masked; whoever looks may go, and hears how it ended."""
    stage = shared
    ts = await stage.client.say("@Orion run: echo 4711 > notes")
    await stage.answer(ts)
    name = await name_of(stage)
    _code, kept = await stage.cli("runs", "show", stage.run_id(ts), "--log")
    assert await stage.cli("sandboxes", "logs", name) == (0, kept)
    last = kept.splitlines()[-1]
    assert await stage.cli("sandboxes", "logs", name, "--tail", "1") == (0, f"{last}\n")
    assert await stage.cli("sandboxes", "logs", name, "-f", "--tail", "1") == (0, f"{last}\n")
    code, said = await stage.cli("sandboxes", "attach", name)
    assert (code, said) == (1, f"{name}: no agent is at work in its thread\n")

    secret = stage.orion.environment["SLACK_SIGNING_SECRET"]
    command = f"run: echo begun {secret[:5]} {secret}; sleep 8; echo over"
    slow = await stage.client.say(f"@Orion {command}", thread_ts=ts)
    await has_begun(stage, slow)
    async with sitting_at(stage, "sandboxes", "attach", name) as person:
        await person.sees("at work on run_")
        await person.sees(f"begun {secret[:5]} [redacted")
        person.presses_ctrl_c()
        assert await person.leaves() == 0
        assert "detached; it goes on" in person.shown
    assert (await stage.record(slow)).outcome is None
    async with open_task_group() as group:
        following = group.create_task(stage.cli("sandboxes", "logs", name, "-f", "--tail", "2"))
        attached = group.create_task(stage.cli("sandboxes", "attach", name))
    code, said = attached.result()
    assert code == 0
    assert f"{name}: {stage.run_id(slow)} succeeded" in said
    assert "over" in said
    assert secret not in said
    code, followed = following.result()
    assert code == 0
    assert secret not in followed
    assert followed.splitlines()[-1] in said
    assert not list((stage.orion.state_dir / "logs").iterdir())

    long = await stage.client.say("@Orion run: sleep 60", thread_ts=ts)
    await has_begun(stage, long)
    async with sitting_at(stage, "sandboxes", "attach", name) as person:
        await person.sees("at work on run_")
        await stage.client.say("stop", thread_ts=ts)
        assert await person.leaves() == 1
        assert "stopped" in person.shown


@pytest.mark.long
async def test_a_script_in_the_threads_files(start_orion: OpenOrion) -> None:
    """It finds the thread's files, no key, no network, no broker; what it changes is saved, or it says why not."""
    async with (
        open_world() as world,
        start_orion(world, ORION_SESSION_KEEP_S="600") as stage,
    ):
        ts = await stage.client.say("@Orion run: echo 4711 > notes")
        await stage.answer(ts)
        name = await name_of(stage)
        code, said = await script(stage, name, LOOK_AROUND)
        assert code == 4, said
        assert "4711\n" in said
        assert "LEAKED" not in said
        assert "network: Network is unreachable" in said
        assert said.endswith(f"{name}: saved\n")
        second = await stage.client.say("@Orion run: cat notes", thread_ts=ts)
        assert "4711\nof a person" in text_of(await stage.answer(second, thread_ts=ts))
        # Of the run's own kept sandbox nothing was changed, so it was not the one to go on with.
        assert len(stage.orion.log_lines("sandbox.created")) == 2

        slow = await stage.client.say("@Orion ! !slow 8", thread_ts=ts)
        await has_begun(stage, slow)
        code, said = await script(stage, name, "echo unsaved >> notes; true")
        assert code == 0
        assert f"{name}: a run is going in its thread" in said
        assert said.endswith(f"{name}: not saved: a run is going in its thread\n")
        await stage.answer(slow, thread_ts=ts)
        assert await script(stage, "no-such", "true") == (
            1,
            "no sandboxes have the name 'no-such' or an id beginning so\n",
        )
        code, said = await stage.cli("sandboxes", "resume", name, "--detached")
        assert code == 1
        assert f"orion sandboxes shell {name}" in said


@pytest.mark.long
async def test_a_person_at_a_terminal(shared: Stage) -> None:
    """A real terminal inside, Ctrl-C for what runs there, the window's size; the person's own is as it was, also when killed."""
    stage = shared
    ts = await stage.client.say("@Orion run: echo 4711 > notes")
    await stage.answer(ts)
    name = await name_of(stage)
    async with sitting_at(stage, "sandboxes", "shell", name) as person:
        before = person.settings
        await person.sees("from what was saved")
        await person.types("stty size; cat notes\n")
        await person.sees("33 101\r\n4711")
        assert person.settings != before
        person.widens_to(20, 60)
        await asyncio.sleep(0.3)
        await person.types("stty size\n")
        await person.sees("20 60\r\n")
        await person.types("sh -c 'echo sleeping; exec sleep 60'; echo $((40 + 2))\n")
        await person.sees("sleeping\r\n")
        began = time.monotonic()
        person.presses_ctrl_c()
        await person.types("echo typed by hand > by-hand; exit 5\n")
        assert await person.leaves() == 5
        assert time.monotonic() - began < 30
        assert f"{name}: saved" in person.shown
        assert person.settings == before
    second = await stage.client.say("@Orion run: cat by-hand", thread_ts=ts)
    assert "typed by hand" in text_of(await stage.answer(second, thread_ts=ts))
    async with sitting_at(stage, "sandboxes", "shell", name) as person:
        before = person.settings
        await person.sees("from what was saved")
        await person.types("echo up; exec sleep 60\n")
        await person.sees("up\r\n")
        person.is_told_to_end()
        await person.leaves()
        assert person.settings == before
    await stage.orion.until_at_rest()

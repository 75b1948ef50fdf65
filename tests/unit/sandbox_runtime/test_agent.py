"""The rules of `Agent`."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from sandbox_runtime import (
    SYMBOLIC_PATHS,
    Agent,
    ExecResult,
    OpenNetwork,
    SandboxError,
    SandboxErrorCode,
    SandboxSpec,
    open_sandbox,
)
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.testing.fake import FakeCall, FakeProvider

_OK = ExecResult(exit_code=0, stdout=b"", stderr=b"")
_IN_ENVIRONMENT = f"{SYMBOLIC_PATHS.environment}/file"


@pytest.fixture
async def fake() -> AsyncIterator[FakeProvider]:
    async with FakeProvider() as provider:
        yield provider


@pytest.fixture
async def agent(fake: FakeProvider) -> Agent:
    return await Agent.create("claude", provider=fake)


async def test_root_is_the_base_environment(fake: FakeProvider, agent: Agent) -> None:
    """Without a snapshot the agent stands on the provider's base, and is clean."""
    assert agent.snapshot_id == (await fake.ensure_ready()).id
    assert (agent.type, agent.dirty) == ("claude", False)


async def test_given_snapshot_is_trimmed(fake: FakeProvider) -> None:
    """A given snapshot id is trimmed and nothing is made ready."""
    agent = await Agent.create("claude", provider=fake, snapshot_id="  abc\n")
    assert agent.snapshot_id == "abc"
    assert await fake.list_snapshots() == ()


@pytest.mark.parametrize("blank", ["", " ", "\t\n"])
async def test_blank_is_refused(fake: FakeProvider, blank: str) -> None:
    """A blank snapshot id or type is a mistake of the caller."""
    with pytest.raises(ValueError, match="blank"):
        await Agent.create("claude", provider=fake, snapshot_id=blank)
    with pytest.raises(ValueError, match="blank"):
        await Agent.create(blank, provider=fake)


async def test_empty_changes_change_nothing(fake: FakeProvider, agent: Agent) -> None:
    """Empty files and commands leave it clean, and preparing a clean agent boots nothing."""
    created = fake.created
    before = agent.snapshot_id
    assert not agent.add_files({}).run_commands([]).dirty
    assert await agent.prepare() == before
    assert fake.created == created


@pytest.mark.parametrize(("commands", "error"), [(["ls -la"], TypeError), ([[]], ValueError)])
async def test_bad_commands_are_refused(
    agent: Agent, commands: list[list[str]], error: type[Exception]
) -> None:
    """A shell string or an empty command is refused when it is queued, and queues nothing."""
    with pytest.raises(error):
        agent.run_commands([["true"], *commands])
    assert not agent.dirty


async def test_prepare_applies_in_order_and_snapshots(fake: FakeProvider, agent: Agent) -> None:
    """Files and commands are applied in the order queued; the new snapshot holds them; the sandbox is gone."""
    script = 'printf "%s" "$(cat "$1")+" > "$1"'
    agent.add_files({_IN_ENVIRONMENT: b"1"}).run_commands(
        [["sh", "-c", script, "sh", _IN_ENVIRONMENT]]
    )
    assert agent.dirty
    before = agent.snapshot_id
    steps: list[str] = []
    after = await agent.prepare(name="prepared", progress=steps.append)
    assert after == agent.snapshot_id != before
    assert not agent.dirty
    assert steps == [
        *("creating", "booting", "installing sh (1/1)", "snapshotting", "cleaning up", "done"),
    ]
    found = await fake.find_snapshot("prepared")
    assert found is not None
    assert found.id == after
    assert fake.alive == 0
    spec = fake.specs[-1]
    assert (spec.snapshot_id, spec.environment_writable) == (before, True)
    assert spec.network == OpenNetwork()
    async with open_sandbox(fake, SandboxSpec(snapshot_id=after)) as sandbox:
        assert await sandbox.read_file(f"{sandbox.paths.environment}/file") == b"1+"


async def test_failed_command_keeps_everything(fake: FakeProvider, agent: Agent) -> None:
    """A failing command names its index and stderr; queue and snapshot stay; mending it and preparing again works."""
    agent.add_files({"f": b""}).run_commands([["true"], ["sh", "-c", "echo broken >&2; exit 3"]])
    before = agent.snapshot_id
    steps: list[str] = []
    with pytest.raises(SandboxError, match=r"commands\[1\] \(sh\) exited with 3: broken") as caught:
        await agent.prepare(progress=steps.append)
    assert caught.value.code is SandboxErrorCode.SETUP_FAILED
    assert (agent.snapshot_id, agent.dirty, fake.alive) == (before, True, 0)
    assert steps[-3:] == ["installing sh (2/2)", "cleaning up", "error"]
    fake.script(["sh"], ExecResult(exit_code=0, stdout=b"", stderr=b""))
    assert await agent.prepare() != before
    assert not agent.dirty


async def test_missing_command_fails(agent: Agent) -> None:
    """A command that does not exist fails the preparation like any other."""
    agent.run_commands([["no-such-command"]])
    with pytest.raises(SandboxError, match="exited with 127"):
        await agent.prepare()


async def test_slow_command_fails(agent: Agent) -> None:
    """A command over its time fails the preparation."""
    agent.run_commands([["sleep", "9"]], timeout_s=0.1)
    with pytest.raises(SandboxError, match=r"commands\[0\] \(sleep\) ran longer") as caught:
        await agent.prepare()
    assert caught.value.code is SandboxErrorCode.SETUP_FAILED


async def test_commands_have_their_own_place_and_origin(fake: FakeProvider, agent: Agent) -> None:
    """Directory and variables reach the command, with symbols replaced; each origin counts its own commands."""
    agent.run_commands([["true"], ["true"]])
    agent.run_commands(
        [["sh", "-c", "echo $HOME > home"], ["sh", "-c", "pwd >&2; exit 1"]],
        cwd=SYMBOLIC_PATHS.environment,
        env={"HOME": SYMBOLIC_PATHS.run},
        origin="mine",
    )
    with pytest.raises(SandboxError, match=r"^mine\[1\] \(sh\) exited with 1: /.*/environments/"):
        await agent.prepare()
    fake.script(lambda call: "pwd >&2; exit 1" in call.argv, _OK)
    prepared = await agent.prepare()
    async with open_sandbox(fake, SandboxSpec(snapshot_id=prepared)) as sandbox:
        home = await sandbox.read_file(f"{sandbox.paths.environment}/home")
        assert home.decode().strip().endswith("/run")


async def test_files_keep_their_mode(fake: FakeProvider, agent: Agent) -> None:
    """An executable file can be run inside, another one cannot."""
    tool = {f"{SYMBOLIC_PATHS.environment}/bin/{name}": b"#!/bin/sh\n" for name in ("yes", "no")}
    (yes, no) = tool
    agent.add_files({yes: tool[yes]}, executable=True).add_files({no: tool[no]})
    async with open_sandbox(fake, SandboxSpec(snapshot_id=await agent.prepare())) as sandbox:
        codes = [
            (await sandbox.exec([f"{sandbox.paths.environment}/bin/{name}"], timeout_s=9)).exit_code
            for name in ("yes", "no")
        ]
        assert codes == [0, 126]


async def test_a_file_that_cannot_be_written_fails_the_preparation(
    fake: FakeProvider, agent: Agent
) -> None:
    """Its place is named; the sandbox goes."""
    agent.add_files({f"{_IN_ENVIRONMENT}/below": b"", _IN_ENVIRONMENT: b""})
    with pytest.raises(
        SandboxError, match=r"cannot write /.*/file: .*a directory is there"
    ) as caught:
        await agent.prepare()
    assert caught.value.code is SandboxErrorCode.SETUP_FAILED
    assert (agent.dirty, fake.alive) == (True, 0)


async def test_a_cancelled_preparation_cleans_up(fake: FakeProvider, agent: Agent) -> None:
    """The step that is going on is told until the end; nothing is left."""
    agent.run_commands([["sleep", "60"]])
    steps: list[str] = []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await agent.prepare(progress=steps.append)
    assert steps[-3:] == ["installing sleep (1/1)", "cleaning up", "error"]
    assert (agent.dirty, fake.alive) == (True, 0)


async def test_retries_bridge_a_transient_failure(fake: FakeProvider, agent: Agent) -> None:
    """With retries a command may fail so often before it counts as failed, and no more often."""
    codes = iter([1, 1, 0, 1, 1])

    def install(_call: FakeCall) -> ExecResult:
        return ExecResult(exit_code=next(codes), stdout=b"", stderr=b"reset")

    fake.script(["pip"], install)
    await agent.run_commands([["pip", "install", "x"]], retries=2, backoff_s=0.01).prepare()
    agent.run_commands([["pip", "install", "x"]], retries=1, backoff_s=0.01)
    with pytest.raises(SandboxError, match="exited with 1: reset"):
        await agent.prepare()


async def test_failed_snapshot_keeps_everything(fake: FakeProvider, agent: Agent) -> None:
    """When saving fails, queue and snapshot stay."""
    before = agent.snapshot_id
    fake.fail("snapshot", 2, SandboxError(SandboxErrorCode.UNAVAILABLE, "lost"))
    fake.fail("snapshot", 1, SandboxError(SandboxErrorCode.UNAVAILABLE, "lost"))
    agent.run_commands([["true"]])
    with pytest.raises(SandboxError, match="lost"):
        await agent.prepare()
    assert (agent.snapshot_id, agent.dirty, fake.alive) == (before, True, 0)


async def test_concurrent_prepares_are_serialised(fake: FakeProvider, agent: Agent) -> None:
    """Two prepares at once boot one sandbox, and both give the new snapshot."""
    created = fake.created
    agent.run_commands([["true"]])
    async with open_task_group() as group:
        tasks = [group.create_task(agent.prepare()) for _ in range(2)]
    assert {task.result() for task in tasks} == {agent.snapshot_id}
    assert fake.created == created + 1


async def test_changes_queued_meanwhile_wait(fake: FakeProvider, agent: Agent) -> None:
    """What is queued while a prepare runs is left for the next one."""

    def queue_more(_call: FakeCall) -> ExecResult:
        agent.run_commands([["second"]])
        return ExecResult(exit_code=0, stdout=b"", stderr=b"")

    fake.script(["first"], queue_more)
    fake.script(["second"], ExecResult(exit_code=0, stdout=b"", stderr=b""))
    await agent.run_commands([["first"]]).prepare()
    assert agent.dirty
    await agent.prepare()
    assert not agent.dirty
    assert [call.argv for call in fake.calls] == [("first",), ("second",)]

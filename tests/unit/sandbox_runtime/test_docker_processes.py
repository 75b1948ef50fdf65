"""The start of a command in a container, as its two streams tell of it."""

from collections.abc import Sequence
from typing import cast

import pytest

from sandbox_runtime import SandboxError, SandboxErrorCode
from sandbox_runtime.providers.docker.client import ExecStream
from sandbox_runtime.providers.docker.processes import ContainerProcess, Host
from sandbox_runtime.types import ExecOutput, OutputStream


class ScriptedStream:
    """What an engine sends, in its order."""

    def __init__(self, outputs: Sequence[ExecOutput]) -> None:
        self._left = list(outputs)

    async def read(self) -> ExecOutput | None:
        return self._left.pop(0) if self._left else None


def out(data: bytes) -> ExecOutput:
    return ExecOutput(stream=OutputStream.STDOUT, data=data)


def err(data: bytes) -> ExecOutput:
    return ExecOutput(stream=OutputStream.STDERR, data=data)


def process_of(*outputs: ExecOutput) -> ContainerProcess:
    stream = cast("ExecStream", ScriptedStream(outputs))
    return ContainerProcess(cast("Host", None), stream, mark="m")


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ([out(b"\x06")], []),
        ([out(b"\x06abc")], [out(b"abc")]),
        ([err(b"no such file"), out(b"\x06")], [err(b"no such file")]),
        (
            [err(b"x" * 70_000), err(b"y"), out(b"\x06z")],
            [err(b"x" * 70_000), err(b"y"), out(b"z")],
        ),
    ],
)
async def test_what_overtakes_the_word_that_it_runs_is_kept(
    sent: Sequence[ExecOutput], kept: Sequence[ExecOutput]
) -> None:
    """A command that complains at once has started all the same."""
    process = process_of(*sent)
    await process.until_started()
    events = process.events()
    assert [await anext(events) for _ in kept] == kept


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ([], "its container ended"),
        ([out(b"OCI runtime exec failed: no memory")], "no memory"),
        ([err(b"cannot "), err(b"fork")], "cannot fork"),
    ],
)
async def test_without_that_word_it_has_not_started(sent: Sequence[ExecOutput], said: str) -> None:
    """The reason is what came instead."""
    with pytest.raises(SandboxError, match=said) as caught:
        await process_of(*sent).until_started()
    assert (caught.value.code, caught.value.retryable) == (SandboxErrorCode.UNAVAILABLE, True)

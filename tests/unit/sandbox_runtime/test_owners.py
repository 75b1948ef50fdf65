"""Whose a sandbox is: told by name or by process, never guessed of another container or host."""

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sandbox_runtime.lifecycle import Owner
from sandbox_runtime.managed_provider import Keep
from sandbox_runtime.providers.deno import labels as deno
from sandbox_runtime.providers.docker import labels as docker
from sandbox_runtime.providers.vercel import labels as vercel
from sandbox_runtime.types import SandboxId, SandboxLimits

NAME = "p-0123456789abcdef0123456789abcdef"


def test_a_name_lives_as_long_as_the_caller_says() -> None:
    """Nobody guesses: without a list of the living, nothing that has a name is given up."""
    owner = Owner.of(NAME)
    assert not owner.is_gone(None)
    assert not owner.is_gone(["another", NAME])
    assert owner.is_gone(["another"])
    assert owner.is_gone([])


def test_a_process_is_judged_where_its_pid_counts() -> None:
    """It lives, it is dead, or nothing is known: then it is left alone, whoever else lives."""
    here = Owner.of()
    assert here.pid == os.getpid()
    ticks, _, place = here.started.partition("@")
    dead = replace(here, started=f"1@{place}")
    elsewhere = replace(here, started=f"{ticks}@{'0' * len(place)}")
    for living in (None, (), [NAME]):
        assert not here.is_gone(living)
        assert dead.is_gone(living)
        assert not elsewhere.is_gone(living)
    assert (here.is_elsewhere, dead.is_elsewhere, elsewhere.is_elsewhere) == (False, False, True)


def test_what_earlier_versions_wrote() -> None:
    """They had the boot's id for a place: of this boot the process counts, one of another boot is dead."""
    here = Owner.of()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    ticks = here.started.partition("@")[0]
    assert not replace(here, started=f"{ticks}@{boot}").is_gone(None)
    assert replace(here, started=f"1@{boot}").is_gone(None)
    assert replace(here, started=f"{ticks}@{'0' * len(boot)}").is_gone(None)


@pytest.mark.parametrize("name", ["with space", "a.b", "ü", "x" * 41, "pid@boot"])
def test_names_are_checked(name: str) -> None:
    """A name that could not be written on a sandbox is refused, and shown."""
    with pytest.raises(ValueError, match="not a name of an owner"):
        Owner.of(name)


@pytest.mark.parametrize("owner", [Owner.of(), Owner.of(NAME), Owner.of("x" * 40)])
def test_owners_are_read_back(owner: Owner) -> None:
    """What stands on a sandbox of any provider says whose it is, within the provider's limits."""
    written = docker.SandboxLabels(
        id="a" * 16,
        owner=owner,
        created_at=datetime.now(UTC),
        labels={},
        base="b",
        environment="e",
        environment_writable=False,
        broker="",
        limits=SandboxLimits(),
    ).encode("orion")
    assert docker.owner_of(written) == owner
    assert docker.owner_of(docker.saving("orion", owner)) == owner
    assert vercel.owner_of(vercel.sandbox_tags(owner, {})) == owner
    labels = deno.SandboxLabels(
        namespace="n" * 32, owner=owner, volume="0" * 8, environment="0" * 8, base="0" * 8
    )
    encoded = labels.encode()
    assert all(len(value.encode()) <= deno.MAX_VALUE_BYTES for value in encoded.values())
    assert deno.SandboxLabels.decode(encoded) == labels


def test_what_is_kept() -> None:
    """Named ones stay whoever made them; what says nothing of its maker goes."""
    keep = Keep(ids=[SandboxId("kept")], living=[NAME])
    assert keep.covers("kept", Owner.of("gone"))
    assert keep.covers("other", Owner.of(NAME))
    assert not keep.covers("other", Owner.of("gone"))
    assert not keep.covers("other", None)
    assert docker.owner_of({"orion.owner": "no JSON"}) is None

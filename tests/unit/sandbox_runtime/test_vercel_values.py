"""What the Vercel provider writes on records, reads back, asks for, and refuses."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_runtime import BrokeredNetwork, ClosedNetwork, OpenNetwork, SandboxError
from sandbox_runtime.lifecycle import Owner
from sandbox_runtime.providers.vercel import VercelSettings
from sandbox_runtime.providers.vercel import labels as keys
from sandbox_runtime.providers.vercel.client import network_policy
from sandbox_runtime.providers.vercel.labels import SnapshotTags

_CREDENTIALS: dict[str, Any] = {"token": "t", "team_id": "team", "project_id": "prj"}


@given(st.text(max_size=40))
def test_tags_are_reversible(text: str) -> None:
    """Any short text comes back, from plain characters."""
    if not text.isprintable():
        return
    value = keys.encode(text)
    assert value.isascii()
    assert keys.decode(value) == text


def test_long_values_are_short_and_differ() -> None:
    """Past the bound two texts still have two values."""
    one, other = keys.encode("x" * 999 + "1"), keys.encode("x" * 999 + "2")
    assert len(one) == len(other) == keys.MAX_VALUE_CHARS
    assert one != other


def test_sandbox_tags() -> None:
    """Five at most; who made it is known again, and no label of the caller's."""
    labels = {"orion.managed": "true", "z": "1", "orion.agent": "a", "a": "2", "orion.run": "r"}
    tags = keys.sandbox_tags(Owner.of(), labels)
    assert len(tags) == keys.MAX_TAGS
    assert keys.labels_of(tags) == {"orion.managed": "true", "orion.run": "r", "orion.agent": "a", "a": "2"}  # fmt: skip
    assert keys.owner_of(tags) == Owner.of()
    assert keys.owner_of({}) is None


def test_snapshot_tags() -> None:
    """What is written comes back; anything else is no snapshot."""
    snapshot = SnapshotTags(
        vercel_id="snap_1",
        name="odd name/ü: x",
        size_bytes=7,
        created_at=datetime(2026, 11, 22, 1, 2, 3, 4000, UTC),
        environment="",
    )
    tags = snapshot.encode()
    assert len(tags) <= keys.MAX_TAGS
    assert SnapshotTags.decode(tags) == snapshot
    assert SnapshotTags.decode({}) is None
    assert SnapshotTags.decode({**tags, keys.STATE: "x"}) is None


def test_sandbox_names() -> None:
    """One for each run and number, whoever asks; without a run, always another."""
    labels = {"orion.run": "r"}
    assert keys.sandbox_name("n", labels, 1) == keys.sandbox_name("n", labels, 1)
    assert keys.sandbox_name("n", labels, 1) != keys.sandbox_name("n", labels, 2)
    assert keys.sandbox_name("m", labels, 1) != keys.sandbox_name("n", labels, 1)
    assert keys.sandbox_name("n", {}, 1) != keys.sandbox_name("n", {}, 1)


def test_network_policies() -> None:
    """Nothing, everything, or one host, with headers only where there are some; a rule for each host of a list, by which its TLS is ended."""
    assert network_policy(ClosedNetwork()).mode == "deny-all"
    assert network_policy(OpenNetwork()).mode == "allow-all"
    plain = network_policy(BrokeredNetwork(endpoint="https://orion.test:8443/broker"))
    assert dict(plain.allow) == {"orion.test": ()}
    keyed = network_policy(BrokeredNetwork(endpoint="https://orion.test", headers={"a": "b"}))
    ((host, (rule,)),) = keyed.allow.items()
    assert (host, dict(rule.transform[0].headers or {})) == ("orion.test", {"a": "b"})
    listed = network_policy(BrokeredNetwork(endpoint="https://orion.test", hosts=("*.a.test:443",)))
    ended = {host: len(rules) for host, rules in listed.allow.items()}
    assert ended == {"*.a.test": 1, "orion.test": 0}
    for bad in ("/run/socket", "orion.test", "ftp://orion.test", "https://"):
        with pytest.raises(SandboxError, match="by a URL"):
            network_policy(BrokeredNetwork(endpoint=bad))


@pytest.mark.parametrize(
    "bad",
    [
        {"name": ""},
        {"name": "Big"},
        {"name": "a_b"},
        {"name": "a" * 25},
        {"api_url": "vercel.com"},
        {"token": None},
        {"team_id": ""},
        {"vcpus": 0},
        {"lifetime_s": 5.0},
        {"lifetime_s": 1e9},
    ],
)
def test_settings_are_checked(bad: dict[str, Any]) -> None:
    """What could not work is refused before anything is asked; a token is never shown."""
    with pytest.raises(ValueError, match=r"not|no Vercel credentials"):
        VercelSettings(**{**_CREDENTIALS, **bad})
    assert "secret" not in repr(VercelSettings(**{**_CREDENTIALS, "token": "secret"}))
    VercelSettings(oidc_token="x")

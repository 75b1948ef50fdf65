"""What slugs and labels say is what was put into them."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from sandbox_runtime.lifecycle import Owner
from sandbox_runtime.providers.deno.labels import (
    MANAGED,
    Kind,
    SandboxLabels,
    Slug,
    name_digest,
    namespace_digest,
    new_id,
)


@given(kind=st.sampled_from(Kind), name=st.text() | st.none(), depth=st.integers(0, 35))
def test_slug_round_trip(kind: Kind, name: str | None, depth: int) -> None:
    """Of the length and the characters that the platform takes."""
    slug = Slug(
        kind=kind,
        namespace=namespace_digest("orion"),
        id=new_id(),
        name=name_digest(name),
        depth=depth,
        parent=new_id(),
    )
    assert len(str(slug)) == 32  # as many as Deno takes
    assert Slug.parse(str(slug)) == slug
    assert slug.is_named is (name is not None)
    assert abs((slug.created_at - datetime.now(UTC)).total_seconds()) < 60


@given(text=st.text(max_size=40))
def test_foreign_slugs(text: str) -> None:
    """Others' are none of ours, and break nothing."""
    slug = Slug.parse(text)
    assert slug is None or str(slug) == text


def test_ids_grow() -> None:
    """The one after another is later, also within a millisecond."""
    first = new_id()
    assert new_id(after=first) > first
    assert new_id(after="0000000z") == "00000010"


@given(labels=st.dictionaries(st.text("abc.", min_size=1, max_size=20), st.text(max_size=30), max_size=3))  # fmt: skip
def test_labels_round_trip(labels: dict[str, str]) -> None:
    """The caller's own come back, ours are within the platform's bounds."""
    for own in (labels, {**labels, MANAGED: "true"}):
        written = SandboxLabels(
            namespace="n" * 32,
            owner=Owner.of(),
            volume=new_id(),
            environment=new_id(),
            base=new_id(),
            environment_writable=bool(labels),
            labels=own,
        )
        encoded = written.encode()
        assert len(encoded[MANAGED]) <= 128
        assert SandboxLabels.decode(encoded) == written


def test_foreign_labels() -> None:
    """Sandboxes of others are not read."""
    for found in ({}, {MANAGED: "true"}, {MANAGED: "a b c"}, {"app": "x"}):
        assert SandboxLabels.decode(found) is None

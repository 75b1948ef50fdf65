"""Entries of the list, and the one spelling of a name."""

import re

import pytest

from app.egress.hosts import (
    HostError,
    canonical_name,
    find_entry,
    read_entry,
    read_items,
    read_target,
)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("api.example.com", "api.example.com"),
        ("API.Example.COM", "api.example.com"),
        ("api.example.com.", "api.example.com"),
        ("xn--pple-43d.example", "xn--pple-43d.example"),
        ("a_b.example", "a_b.example"),
        ("1password.example", "1password.example"),
        ("localhost", "localhost"),
    ],
)
def test_a_name_has_one_spelling(written: str, name: str) -> None:
    assert canonical_name(written) == name


@pytest.mark.parametrize(
    "written",
    [
        "",
        ".",
        ".example.com",
        "api..example.com",
        "api.example.com..",
        "api example.com",
        "api.example.com\0",
        "api.example.com/x",
        "api.example.com#x",
        "api\\.example.com",
        "user@api.example.com",
        "%61pi.example.com",
        "-api.example.com",
        "api-.example.com",
        "\u0430pi.example.com",
        "api\u3002example\u3002com",
        "api.example.com:443",
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "api.0x",
        "[::1]",
        "::1",
        "::ffff:127.0.0.1",
        f"{'a' * 64}.example.com",
        ".".join(["a" * 60] * 5),
    ],
)
def test_what_is_no_name(written: str) -> None:
    with pytest.raises(HostError):
        canonical_name(written)


@pytest.mark.parametrize(
    "written",
    [
        "api.example.com",
        "api.example.com:",
        "api.example.com:0",
        "api.example.com:00443",
        "api.example.com:0443",
        "api.example.com:+443",
        "api.example.com:65536",
        "api.example.com:99999",
        "api.example.com:443:443",
        "api.example.com:\uff14\uff14\uff13",
        "api.example.com:443 ",
        "api.example.com:443\n",
        ":443",
    ],
)
def test_what_is_no_target(written: str) -> None:
    with pytest.raises(HostError):
        read_target(written)


@pytest.mark.parametrize(
    ("entry", "covered", "not_covered"),
    [
        (
            "api.example.com",
            [("api.example.com", 443)],
            [("api.example.com", 80), ("b.api.example.com", 443)],
        ),
        ("api.example.com:8443", [("api.example.com", 8443)], [("api.example.com", 443)]),
        (
            "*.example.com",
            [("a.example.com", 443), ("b.a.example.com", 443)],
            [("example.com", 443), ("notexample.com", 443), ("a.example.com.evil.example", 443)],
        ),
    ],
)
def test_what_an_entry_covers(
    entry: str, covered: list[tuple[str, int]], not_covered: list[tuple[str, int]]
) -> None:
    read = read_entry(entry)
    assert str(read) == entry
    assert all(read.covers(*one) for one in covered)
    assert not any(read.covers(*one) for one in not_covered)


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "*",
        "*.",
        "*.com",
        "a.*.example.com",
        "*a.example.com",
        "10.0.0.1",
        "*.0.0.1",
        "https://api.example.com",
        "api.example.com:x",
        "api.example.com/x",
    ],
)
def test_entries_that_cannot_be_meant(entry: str) -> None:
    with pytest.raises(HostError):
        read_entry(entry)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("pip", "did you mean @pip?"),
        ("private:npm", "did you mean private:@npm?"),
        ("PIP", "did you mean @pip?"),
        ("@PIP", "did you mean @pip?"),
        ("private:@PIP", "did you mean private:@pip?"),
        ("Packages", "did you mean packages?"),
        ("@pip;@npm", "did you mean @pip, @npm?"),
        ("package", "did you mean packages?"),
        ("@pipp", "did you mean @pip?"),
        ("@x", "is no set; there are @"),
    ],
)
def test_a_set_that_is_written_otherwise_is_named(word: str, said: str) -> None:
    with pytest.raises(HostError, match=re.escape(said)) as raised:
        read_items([word])
    assert word in str(raised.value)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("privat:x.example", "did you mean private:x.example?"),
        ("PRIVATE:x.example:8443", "did you mean private:x.example:8443?"),
        ("private: x.example", "did you mean private:x.example?"),
        ("private:", "stands right before a host, without a space"),
        ("http:x.example", "did you mean x.example:80?"),
        ("https://x.example/path", "did you mean x.example?"),
        ("https://x.example:8443/path", "did you mean x.example:8443?"),
        ("x.example:y", "is not a host's name and a port"),
    ],
)
def test_what_is_before_a_host_is_corrected(word: str, said: str) -> None:
    """Where the nearest right word is known."""
    with pytest.raises(HostError, match=re.escape(said)):
        read_items([word])


@pytest.mark.parametrize(
    "word", ["localhost", "private:localhost", "LOCALHOST.:8080", "a.localhost"]
)
def test_this_machine_is_no_entry(word: str) -> None:
    """No sandbox ever reaches it."""
    with pytest.raises(HostError, match="is this machine itself, which no sandbox may reach"):
        read_items([word])


def test_every_wrong_entry_is_named() -> None:
    with pytest.raises(HostError) as raised:
        read_items(["privat:x", "api.example.com", "@pipp", "10.0.0.1"])
    assert [one.partition(" ")[0] for one in str(raised.value).split("; '")] == [
        "'privat:x'",
        "@pipp'",
        "10.0.0.1'",
    ]


def test_a_private_entry_is_found_first() -> None:
    entries = [read_entry("*.example.com"), read_entry("mirror.example.com", is_private=True)]
    found = find_entry(entries, "mirror.example.com", 443)
    assert found is not None
    assert found.is_private
    assert find_entry(entries, "example.com", 443) is None

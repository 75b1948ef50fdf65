"""What a push may say, what a git token is good for, which servers are asked."""

from datetime import UTC, datetime, timedelta

import pytest

from app.brokerage.credentials import GitCredentials, GitRemotes
from app.brokerage.git import CommandError, check_push, read_commands, render_refusal
from app.brokerage.registry import InvalidTokenError, create_token, read_git_token, read_token
from app.runs.testing import ModelGrant, RunId, git_token, slug_of

OLD, NEW, NONE = "1" * 40, "2" * 40, "0" * 40
OWN = "orion/quick-fox"


def _line(text: str) -> bytes:
    return f"{len(text) + 4:04x}{text}".encode()


def _push(*commands: str, said: str = "report-status side-band-64k agent=git/2.39") -> bytes:
    """What git can is said behind its first command."""
    lines = list(commands)
    first = next(at for at, line in enumerate(lines) if not line.startswith("shallow "))
    lines[first] += f"\0{said}"
    return b"".join(map(_line, lines)) + b"0000PACK..."


@pytest.mark.parametrize(
    ("commands", "refused"),
    [
        ((f"{NONE} {NEW} refs/heads/{OWN}",), ""),
        ((f"{OLD} {NEW} refs/heads/{OWN}",), ""),
        ((f"shallow {OLD}", f"{OLD} {NEW} refs/heads/{OWN}"), ""),
        ((f"{OLD} {NEW} refs/heads/main",), "only the branch"),
        ((f"{OLD} {NEW} refs/heads/{OWN}", f"{OLD} {NEW} refs/heads/main"), "only the branch"),
        ((f"{OLD} {NEW} refs/heads/{OWN}-2",), "only the branch"),
        ((f"{NONE} {NEW} refs/tags/v1",), "only the branch"),
        ((f"{OLD} {NONE} refs/heads/{OWN}",), "nothing may be deleted"),
    ],
)
def test_only_the_own_branch_is_written(commands: tuple[str, ...], refused: str) -> None:
    """Created and updated, together with nothing else."""
    found = read_commands(_push(*commands))
    assert found is not None
    reason = check_push(found, OWN)
    assert reason.startswith(refused)
    assert bool(reason) is bool(refused)


@pytest.mark.parametrize("said", ["report-status push-options", "push-options=1 report-status"])
def test_push_options_are_refused(said: str) -> None:
    """They make a server do more than the commands say; a value does not hide them."""
    found = read_commands(_push(f"{OLD} {NEW} refs/heads/{OWN}", said=said))
    assert found is not None
    assert check_push(found, OWN) == "push options may not be sent"


def test_before_the_branch_has_its_name_nothing_is_written() -> None:
    """Of whatever name."""
    found = read_commands(_push(f"{NONE} {NEW} refs/heads/{OWN}"))
    assert found is not None
    assert check_push(found, "") == "nothing may be pushed yet"


def test_commands_are_read_in_pieces() -> None:
    """None before the flush; the probe of a large push has none; git is told no for each ref."""
    whole = _push(f"{OLD} {NEW} refs/heads/main").partition(b"PACK")[0]
    assert all(read_commands(whole[:size]) is None for size in range(len(whole)))
    found, probe = read_commands(whole), read_commands(b"0000")
    assert found is not None
    assert probe is not None
    assert probe.commands == ()
    assert b"ng refs/heads/main no\n" in render_refusal(found, "no")


@pytest.mark.parametrize(
    "body",
    [
        *(b"PACK", b"0001", b"0003", _line("push-cert\0x"), _line(f"{OLD} {NEW}"), b"zzzz"),
        _line(f"shallow {OLD}\0push-options"),
        2 * _line(f"{OLD} {NEW} refs/heads/{OWN}\0push-options"),
        _line(f"{OLD} {NEW} refs/heads/{OWN}\0")
        + _line(f"{OLD} {NEW} refs/heads/{OWN}\0push-options"),
        _line(f"{OLD} {NEW} refs/heads/{OWN}\0report-status push-options\0x"),
    ],
)
def test_what_is_no_push_is_refused(body: bytes) -> None:
    """Certificates and other forms could hide commands, and later lines what may not be asked for."""
    with pytest.raises(CommandError):
        read_commands(body + b"0000")


def test_a_git_token_is_good_for_git_alone() -> None:
    """It stands for the same run; neither of the two tokens can take the other's place."""
    key, at = b"k" * 32, datetime.now(UTC) + timedelta(minutes=1)
    token = create_token(key, ModelGrant(run_id=RunId("run_1"), models=("m",), expires_at=at))
    derived = git_token(token)
    assert read_git_token(key, derived).run_id == "run_1"
    with pytest.raises(InvalidTokenError):
        read_token(key, derived)
    with pytest.raises(InvalidTokenError):
        read_git_token(key, token)
    with pytest.raises(InvalidTokenError):
        read_git_token(b"x" * 32, derived)


async def test_servers_and_the_token() -> None:
    """Only GitHub's own host is given the token; what only this machine reaches is not asked, nor plain HTTP."""
    remotes = GitRemotes(github_url="https://github.com", token="ghp_x")
    credentials = GitCredentials(remotes=remotes)
    assert await credentials.headers_for("https://github.com/a/b.git", None)
    for other in ("http://github.com/a/b", "https://github.com.evil.test/a/b", "https://x.test/a"):
        assert await credentials.headers_for(other, None) == {}
    assert "public" in await remotes.check_server("https://127.0.0.1/a/b")
    assert "public" in await remotes.check_server("https://[::1]:8443/a/b")
    assert "public" in await remotes.check_server("https://169.254.169.254/latest")
    assert "https" in await remotes.check_server("http://93.184.215.14/a/b")
    assert await remotes.check_server("https://github.com/a/b") == ""
    assert slug_of("https://github.com/a/b.git/") == slug_of("github.com/a/b") == "github.com/a/b"


@pytest.mark.parametrize("host", ["a" * 64 + ".com", ".example.com", "a..example.com"])
async def test_a_name_that_no_server_can_have(host: str) -> None:
    """Is told, and no error of the broker's."""
    remotes = GitRemotes(github_url="https://github.com")
    assert "name of a server" in await remotes.check_server(f"https://{host}/a/b")


@pytest.mark.parametrize(
    ("address", "is_public"),
    [
        *(("64:ff9b::7f00:1", False), ("64:ff9b::a9fe:a9fe", False), ("64:ff9b::808:808", True)),
        *(("2002:7f00:1::", False), ("2002:808:808::", True)),
        *(("::127.0.0.1", False), ("::8.8.8.8", True)),
        *(("::ffff:127.0.0.1", False), ("::ffff:100.64.0.1", False), ("2001:0:7f00:1::1", False)),
        ("2606:4700:4700::1111", True),
    ],
)
async def test_an_ipv4_address_inside_of_an_ipv6_one(address: str, *, is_public: bool) -> None:
    """Where a gateway translates, that is the server which is reached."""
    remotes = GitRemotes(github_url="https://github.com")
    problem = await remotes.check_server(f"https://[{address}]/a/b")
    assert problem == ("" if is_public else f"{address} is not a public server")

"""What keeps the playground from starting."""

import socket
from pathlib import Path

import pytest

from app.cli.commands.playground import run_playground


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_port_in_use_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its option."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert run_playground(port=port, state_dir=tmp_path / "state") == 1
    expected = f"the playground cannot start: port {port} (--port) is in use by another program\n"
    assert capsys.readouterr().err == expected


def test_a_broken_orion_toml_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That of the current directory, in one line."""
    (tmp_path / "orion.toml").write_text("questions = 7\n")
    assert run_playground(port=0, state_dir=tmp_path / "state") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("the playground cannot start: orion.toml: line 1: questions: ")
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("file", "is a file, not a directory"),
        ("file/below", "cannot be used: Not a directory"),
        ("/proc/none", "cannot be used: No such file or directory"),
    ],
)
def test_a_state_directory_that_cannot_be_is_named(
    name: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its option."""
    (tmp_path / "file").touch()
    directory = tmp_path / name
    assert run_playground(port=0, state_dir=directory) == 1
    expected = f"the playground cannot start: --state-dir {directory} {told}\n"
    assert capsys.readouterr().err == expected

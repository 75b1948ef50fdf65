"""Tokens in the system's keyring, through the real library with a backend of its own."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import keyring
import keyring.backend
import keyring.errors
import pytest
from typing_extensions import override

from app.settings.group import SettingsError
from app.settings.settings import KeyringError, Settings, load_settings, read_keyring, write_keyring
from sandbox_runtime.registry import provider_spec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def _token_of(settings: Settings) -> str | None:
    return settings.sandbox.provider_values(provider_spec("deno"))["DENO_DEPLOY_TOKEN"]


class _Memory(keyring.backend.KeyringBackend):
    priority = 1

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # keyring has no types
        self.kept: dict[tuple[str, str], str] = {}
        self.is_locked = False

    @override
    def get_password(self, service: str, username: str) -> str | None:
        if self.is_locked:
            raise keyring.errors.KeyringLocked("it is locked")
        return self.kept.get((service, username))

    @override
    def set_password(self, service: str, username: str, password: str) -> None:
        if self.is_locked:
            raise keyring.errors.KeyringLocked("it is locked")
        self.kept[service, username] = password

    @override
    def delete_password(self, service: str, username: str) -> None:
        del self.kept[service, username]


@pytest.fixture
def backend() -> Iterator[_Memory]:
    before = keyring.get_keyring()
    made = _Memory()
    keyring.set_keyring(made)
    yield made
    keyring.set_keyring(before)


def test_a_token_comes_from_the_keyring(
    backend: _Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only with ORION_KEYRING, and only where neither the environment nor the file has it."""
    write_keyring("deno_deploy_token", "ddo_kept")
    assert backend.kept == {("orion", "DENO_DEPLOY_TOKEN"): "ddo_kept"}
    env_file = tmp_path / ".env"
    env_file.write_text("")
    assert _token_of(load_settings(env_file=env_file)) is None
    env_file.write_text("ORION_KEYRING=true\n")
    kept = _token_of(load_settings(env_file=env_file))
    assert kept == "ddo_kept"
    assert "ddo_kept" in load_settings(env_file=env_file).secrets
    monkeypatch.setenv("DENO_DEPLOY_TOKEN", "ddo_set")
    chosen = _token_of(load_settings(env_file=env_file))
    assert chosen == "ddo_set"


def test_a_keyring_that_is_locked_is_a_bad_setting(backend: _Memory, tmp_path: Path) -> None:
    """One line that says what to do, at reading and at writing."""
    backend.is_locked = True
    env_file = tmp_path / ".env"
    env_file.write_text("ORION_KEYRING=true\n")
    with pytest.raises(
        SettingsError, match=r"ORION_KEYRING: .* it is locked; keep tokens in \.env"
    ):
        load_settings(env_file=env_file)
    with pytest.raises(KeyringError, match="it is locked"):
        write_keyring("vercel_token", "x")
    with pytest.raises(KeyringError, match="it is locked"):
        read_keyring(["vercel_token"])


def test_a_keyring_that_is_not_installed_names_the_extra() -> None:
    """With the command that installs it."""
    program = (
        "import sys; sys.modules['keyring'] = None\n"
        "from app.settings.settings import KeyringError, write_keyring\n"
        "try: write_keyring('vercel_token', 'x')\n"
        "except KeyringError as exc: print(exc)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "pip install 'orion[keyring]'" in done.stdout

"""Tokens in the keyring of the operating system, for those who do not want them in a file; needs the extra `keyring`."""

from collections.abc import Collection
from types import ModuleType

SERVICE = "orion"
KEYRING_FIELDS = ("vercel_token", "vercel_team_id", "vercel_project_id", "deno_deploy_token")


class KeyringError(ValueError):
    """It cannot be used; says why and what to do."""


def read_keyring(names: Collection[str]) -> dict[str, str]:
    """Those of the settings that it holds, by their field names.

    Raises:
        KeyringError
    """
    library = _library()
    try:
        found = {name: library.get_password(SERVICE, name.upper()) for name in names}
    except library.errors.KeyringError as exc:
        raise _unusable(exc) from exc
    return {name: value for name, value in found.items() if value}


def write_keyring(name: str, value: str) -> None:
    """Keep the value of a setting there, by its field name.

    Raises:
        KeyringError
    """
    library = _library()
    try:
        library.set_password(SERVICE, name.upper(), value)
    except library.errors.KeyringError as exc:
        raise _unusable(exc) from exc


def _library() -> ModuleType:
    try:
        import keyring  # noqa: PLC0415 - an extra
        import keyring.errors  # noqa: PLC0415
    except ModuleNotFoundError as exc:
        raise KeyringError(
            "it needs the package 'keyring': install the extra 'keyring' (pip install 'orion[keyring]')"
        ) from exc
    return keyring


def _unusable(exc: Exception) -> KeyringError:
    reason = str(exc).partition("\n")[0] or type(exc).__name__
    return KeyringError(f"the keyring of this system cannot be used: {reason}; keep tokens in .env")

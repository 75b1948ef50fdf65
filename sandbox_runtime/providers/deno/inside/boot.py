"""Makes a booted machine a sandbox, or readies its disks to be saved.

Usage, as root: `python3 -I -S -c SOURCE start|stop JSON`. Standard library only, and nothing newer than Python 3.9.

start: the session's directories are the agent's, the environment only while it may be written, and nobody inside gets a
further user namespace. stop: nothing of the user's runs, what must not be saved is gone, all is on the disks.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

_SESSION, _SEED, _COPY, _ENVIRONMENT = "/session", "/seed", "/copy", "/env"
_SAVED = ("work", "home")
_RECORD = f"{_SESSION}/sandbox.json"


def main() -> None:
    """Starts or stops, as the first argument says."""
    config = json.loads(sys.argv[2])
    if sys.argv[1] == "start":
        _start(config)
    else:
        _stop(config)


def _start(config: dict[str, object]) -> None:
    user = int(str(config["user"]))
    _forbid_namespaces()
    os.chmod(_SESSION, 0o755)  # noqa: S103, PTH101  # passable; what is in it has owners of its own
    source = {"copy": _COPY, "seed": _SEED}.get(str(config["fill"]), "")
    for name in (*_SAVED, "run"):
        path = f"{_SESSION}/{name}"
        if name == "run":
            shutil.rmtree(path, ignore_errors=True)
        if name in _SAVED and os.path.isdir(f"{source}/{name}"):  # noqa: PTH112  # quick start
            subprocess.run(["cp", "-a", f"{source}/{name}", _SESSION], check=True)  # noqa: S607
        elif not os.path.isdir(path):  # noqa: PTH112  # same
            os.mkdir(path, 0o755)  # noqa: PTH102  # same
        os.chown(path, user, user)
    if config["writable"]:
        _give(_ENVIRONMENT, user)
    with open(_RECORD, "w", opener=_private) as file:  # same
        json.dump(config["record"], file)


def _stop(config: dict[str, object]) -> None:
    for path in (f"{_SESSION}/run", _RECORD):
        if os.path.isdir(path):  # noqa: PTH112  # quick start
            shutil.rmtree(path)
        elif os.path.exists(path):  # noqa: PTH110  # same
            os.unlink(path)  # noqa: PTH108  # same
    if config["writable"]:
        _give(_ENVIRONMENT, 0)
        # As the agent's group could do, but not write: whose files they were, may have kept others out.
        subprocess.run(["chmod", "-R", "go=u,go-w", _ENVIRONMENT], check=True)  # noqa: S607
        shutil.rmtree(_SEED, ignore_errors=True)
        if any(os.listdir(f"{_SESSION}/{name}") for name in _SAVED):  # noqa: PTH208  # quick start
            os.rename(_SESSION, _SEED)  # noqa: PTH104  # same
        else:
            shutil.rmtree(_SESSION)
        os.mkdir(_SESSION)  # noqa: PTH102  # same
    os.sync()


def _give(path: str, user: int) -> None:
    subprocess.run(["chown", "-Rh", f"{user}:{user}", path], check=True)  # noqa: S607


def _forbid_namespaces() -> None:
    """Allows no user namespaces: capabilities would return in one."""
    try:
        with open("/proc/sys/user/max_user_namespaces", "w") as file:  # noqa: PTH123  # quick start
            file.write("0")
    except OSError:
        pass


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


if __name__ == "__main__":
    main()

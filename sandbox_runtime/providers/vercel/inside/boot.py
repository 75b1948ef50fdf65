"""Makes a machine ready for commands, or for being saved. Standard library only, and nothing newer than Python 3.9.

Usage: `python3 -I -S -c SOURCE TASK SOURCE`, as the image's user, who may use sudo; TASK is JSON in base64, of which `do` says
what to do. It calls itself as root, with the environment that the image's user has: the network's CA certificates are named there.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys

AGENT, AGENT_UID = "agent", 10001
WORK, HOME, RUN, ENVIRONMENT, OWN = "/work", "/home/agent", "/orion", "/env", "/run/sandbox-runtime"
_ENV_NAMES = (
    *("PATH", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS", "PIP_CERT"),
    *("REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE", "AWS_CA_BUNDLE", "DENO_CERT"),
)
_ARGUMENTS_OF_USER = 3
_NAMESPACES = "/proc/sys/user/max_user_namespaces"


def boot(task: dict[str, object], env: dict[str, str]) -> None:
    """Makes the agent's user and its directories, and writes the runner and what to remember of this sandbox."""
    _add_user()
    _clear(OWN)
    os.makedirs(OWN, mode=0o700, exist_ok=True)
    _write(OWN + "/run.py", str(task["run"]))
    _write(OWN + "/env.json", json.dumps(env))
    _write(OWN + "/about.json", json.dumps(task["about"]))
    os.makedirs(os.path.dirname(HOME), exist_ok=True)
    for path in (RUN, "/tmp"):  # noqa: S108  # the machine's own
        _clear(path)
    for path in (WORK, HOME, RUN):
        os.makedirs(path, exist_ok=True)
        os.chown(path, AGENT_UID, AGENT_UID)
    os.makedirs(ENVIRONMENT, exist_ok=True)
    if task["writable"]:
        _own(ENVIRONMENT, AGENT_UID)
    try:
        _write(_NAMESPACES, "0")  # a further user namespace would give capabilities back
    except OSError:
        pass  # where the kernel has none
    about(task, env)


def save(_task: dict[str, object], _env: dict[str, str]) -> None:
    """Removes what is of a run, makes the environment nobody's to change, and says how much there is to save."""
    for path in (RUN, "/tmp", OWN):  # noqa: S108  # the machine's own
        _clear(path)
    _own(ENVIRONMENT, 0)
    print(sum(_size(path) for path in (WORK, HOME, ENVIRONMENT)))  # noqa: T201  # the answer


def about(task: dict[str, object], _env: dict[str, str]) -> None:
    """Says what `boot` was told to remember, and its environment; replaces the runner by the present one."""
    _write(OWN + "/run.py", str(task["run"]))
    with open(OWN + "/about.json") as file:
        remembered = json.load(file)
    with open(OWN + "/env.json") as file:
        print(json.dumps({"about": remembered, "env": json.load(file)}))  # noqa: T201  # the answer


def pack(task: dict[str, object], _env: dict[str, str]) -> None:
    """Packs the workspace into an archive."""
    path = str(task["path"])
    saved = [WORK[1:], HOME[1:]]
    subprocess.run(["tar", "-C", "/", "--numeric-owner", "-czf", path, *saved], check=True)
    os.chmod(path, 0o644)


def unpack(task: dict[str, object], _env: dict[str, str]) -> None:
    """Puts an archive's files in the place of the workspace."""
    path = str(task["path"])
    for directory in (WORK, HOME):
        _clear(directory)
    subprocess.run(["tar", "-C", "/", "--numeric-owner", "-xpzf", path], check=True)
    os.unlink(path)


def _add_user() -> None:
    for path, line in (
        ("/etc/passwd", f"{AGENT}:x:{AGENT_UID}:{AGENT_UID}:{AGENT}:{HOME}:/bin/sh\n"),
        ("/etc/group", f"{AGENT}:x:{AGENT_UID}:\n"),
    ):
        with open(path) as file:
            lines = file.readlines()
        if not any(found.startswith(AGENT + ":") for found in lines):
            with open(path, "a") as file:
                file.write(line if not lines or lines[-1].endswith("\n") else "\n" + line)


def _clear(path: str) -> None:
    """Removes what is in a directory, not itself; links are removed, not followed."""
    if not os.path.isdir(path) or os.path.islink(path):
        return
    for entry in os.scandir(path):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            os.unlink(entry.path)


def _own(path: str, uid: int) -> None:
    os.chown(path, uid, uid, follow_symlinks=False)
    for parent, directories, files in os.walk(path):
        for name in (*directories, *files):
            os.chown(os.path.join(parent, name), uid, uid, follow_symlinks=False)


def _size(path: str) -> int:
    total = 0
    for parent, _, files in os.walk(path):
        for name in files:
            total += os.lstat(os.path.join(parent, name)).st_size
    return total


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def main() -> None:
    """Runs once as the image's user, once as root."""
    task, source = json.loads(base64.b64decode(sys.argv[1])), sys.argv[2]
    if len(sys.argv) == _ARGUMENTS_OF_USER:
        env = {name: os.environ[name] for name in _ENV_NAMES if name in os.environ}
        argv = [sys.executable or "python3", "-I", "-S", "-c", source, sys.argv[1], source]
        os.execvp("sudo", ["sudo", "-n", *argv, json.dumps(env)])
    tasks = {"boot": boot, "save": save, "about": about, "pack": pack, "unpack": unpack}
    tasks[task["do"]](task, json.loads(sys.argv[3]))


if __name__ == "__main__":
    main()

"""Base images without a registry: the files of this machine's own Debian packages.

`python -m tests.docker_image` makes that of sandboxes if it is not there, in about ten seconds, and prints its name; with `check`
it prints why it cannot, if so. It is for tests only.
"""

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

_STATUS = Path("/var/lib/dpkg/status")
_INFO = Path("/var/lib/dpkg/info")

_NEEDED = (
    *("bash", "coreutils", "dash", "findutils", "gawk|mawk", "git", "grep", "gzip", "libc-bin"),
    *("python3", "sed", "tar", "util-linux"),
)
WANTED = (
    *("ca-certificates", "curl", "hostname", "jq", "login", "mount", "nodejs", "passwd", "procps"),
    *("python3-venv", "ripgrep", "unzip", "zip"),
)
"""Put in where this machine has them."""
_ALWAYS = ("base-files", "libc6", "libssl3", "libssl3t64")
_GENERATED = (
    "etc/alternatives",
    "etc/ld.so.cache",
    "etc/ssl/certs",
    "usr/bin/awk",
    "usr/bin/which",
    "usr/lib/node_modules/npm",
)
_LEFT_OUT = re.compile(r"usr/share/(doc|man|locale|info|lintian|bug)/.")
_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")

_USERS = """\
root:x:0:0:root:/root:/usr/sbin/nologin
agent:x:10001:10001:agent:/home/agent:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""
_GROUPS = "root:x:0:\nagent:x:10001:\nnogroup:x:65534:\n"
_DIRECTORIES = ("broker", "dev", "etc", "home", "proc", "root", "run", "sys", "tmp", "usr", "var")
_OWNED = ("env", "home/agent", "orion", "work")
_VERSION = b"2"


def ensure_image(needed: Sequence[str] = _NEEDED, *, wanted: Sequence[str] = WANTED) -> str:
    """The name of the image with these packages and all that they need, made if the engine does not have it.

    Raises:
        RuntimeError: this machine lacks what it takes.
    """
    packages = _closure(needed, wanted)
    content = "\n".join(sorted(packages.values())).encode()
    name = f"orion-test-base:{hashlib.sha256(_VERSION + content).hexdigest()[:16]}"
    if not _exists(name):
        _import(name, packages)
    return name


def _exists(name: str) -> bool:
    argv = ["docker", "image", "inspect", name]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def missing() -> str | None:
    """Why this machine cannot make it, if so."""
    if shutil.which("docker") is None or not _STATUS.is_file():
        return "it takes docker and a Debian system"
    try:
        _closure(_NEEDED, WANTED)
    except RuntimeError as exc:
        return str(exc)
    return None


def _closure(needed: Sequence[str], wanted: Sequence[str]) -> dict[str, str]:
    """Installed packages that are needed or wanted, by file name below dpkg's `info`, with name and version."""
    installed = _installed()
    provided = {
        name: package for package, fields in installed.items() for name in fields["Provides"]
    }

    def find(choice: str) -> str | None:
        return next(
            (provided.get(name, name if name in installed else None) for name in choice.split("|")
             if name in installed or name in provided),
            None,
        )  # fmt: skip

    todo: list[str] = []
    for choice in needed:
        found = find(choice)
        if found is None:
            raise RuntimeError(f"the package {choice} is not installed")
        todo.append(found)
    todo += [name for name in (*wanted, *_ALWAYS) if name in installed]
    taken: dict[str, str] = {}
    while todo:
        package = todo.pop()
        fields = installed[package]
        if package in taken:
            continue
        taken[package] = f"{package} {fields['Version'][0]}"
        todo += [found for choice in fields["Depends"] if (found := find(choice)) is not None]
    return taken


def _installed() -> dict[str, dict[str, list[str]]]:
    packages = {}
    for paragraph in _STATUS.read_text("utf-8", "replace").split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z-]+): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Status") != "install ok installed":
            continue
        depends = [fields.get(key, "") for key in ("Depends", "Pre-Depends")]
        packages[fields["Package"]] = {
            "Version": [fields["Version"]],
            "Provides": [_bare(name) for name in fields.get("Provides", "").split(",") if name],
            "Depends": [
                "|".join(_bare(name) for name in choice.split("|"))
                for text in depends
                for choice in text.split(",")
                if choice
            ],
        }
    return packages


def _bare(name: str) -> str:
    return name.partition("(")[0].strip().partition(":")[0]


def _paths(packages: Sequence[str]) -> Iterator[str]:
    """Relative to the root, each once, directories before what is in them."""
    seen: set[str] = set()
    for package in packages:
        lists = [_INFO / f"{package}.list", *_INFO.glob(f"{package}:*.list")]
        for line in next(path for path in lists if path.is_file()).read_text().splitlines():
            seen.add(_resolved(line))
    for name in _GENERATED:
        path = Path("/", name)
        if path.is_symlink() or path.exists():
            seen.add(name)
        if path.is_dir():
            seen.update(str(below.relative_to("/")) for below in path.rglob("*"))
    yield from sorted(path for path in seen if path and not _LEFT_OUT.match(path))


def _resolved(line: str) -> str:
    """Packages may say /bin where this machine has a link to /usr/bin."""
    parent, name = os.path.split(line)
    return os.path.join(os.path.realpath(parent), name).lstrip("/")  # noqa: PTH118


def _import(name: str, packages: dict[str, str]) -> None:
    changes = ["USER agent", "WORKDIR /work", 'CMD ["sh"]']
    changes.append("ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    argv = ["docker", "import", *(text for change in changes for text in ("-c", change)), "-", name]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as importing:
        if importing.stdin is None:
            raise AssertionError("it has a pipe")
        with tarfile.open(mode="w|", fileobj=importing.stdin, bufsize=1 << 20) as archive:
            _fill(archive, tuple(packages))
    if importing.returncode != 0:
        raise RuntimeError(f"docker import exited with {importing.returncode}")


def _fill(archive: tarfile.TarFile, packages: Sequence[str]) -> None:
    for name in _DIRECTORIES:
        _add_directory(archive, name, owner=0, mode=0o1777 if name == "tmp" else 0o755)
    for name in _OWNED:
        _add_directory(archive, name, owner=10001)
    for name, text in (("etc/passwd", _USERS), ("etc/group", _GROUPS)):
        member = tarfile.TarInfo(name)
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text.encode()))
    for name in _LINKS:
        path = Path("/", name)
        if path.is_symlink():
            archive.add(path, name, recursive=False)
    made = {"etc/passwd", "etc/group", *_DIRECTORIES, *_OWNED, *_LINKS}
    for name in _paths(packages):
        path = Path("/", name)
        if name not in made and (path.is_symlink() or path.is_file() or path.is_dir()):
            archive.add(path, name, recursive=False)


def _add_directory(archive: tarfile.TarFile, name: str, *, owner: int, mode: int = 0o755) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.uid, member.gid = tarfile.DIRTYPE, mode, owner, owner
    archive.addfile(member)


if __name__ == "__main__":
    is_check = sys.argv[1:] == ["check"]
    sys.stdout.write((missing() or "" if is_check else ensure_image()) + "\n")

"""Hosts that package tools install from, asked of the tools themselves on this machine: so a company's mirror is meant where one is set up.

A tool's index and the files that it names may be at different hosts. What no tool tells is not in a set: what scripts of packages
fetch from elsewhere.
"""

import asyncio
import json
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from app.aio import open_task_group
from app.egress.hosts import HostEntry, HostError, HostSet, canonical_name
from app.log import get_logger

_log = get_logger(__name__)

ASK_TIMEOUT_S: Final = 30.0
"""For one tool, which may ask its index."""
_PIP_DEFAULT: Final = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
"""Pip prints no default. Source: pip 23.2 and 26.0."""
_KNOWN: Final = {"pip": "pip", "npm": "semver"}
"""A small package that each index has: where its file is, the files are."""
_INDEX_OF_CARGO: Final = """
cargo new --quiet --lib --vcs none --name asked "$1/asked"
cd "$1/asked"
CARGO_LOG=network=debug timeout 20 cargo add cfg-if 2>&1 || true
"""
"""Cargo tells its index only while it asks it, also where that fails. Source: cargo 1.95."""
_CARGO_ASKS = re.compile(r"fetch (\S+/config\.json)")
_CHECKSUMS_OF_GO = re.compile(r"\S+ (?P<url>https://\S+)|(?P<name>[^\s+]+)(?:\+\S+)?")
"""A database, by its name alone, with its key, or with another URL. Source: go.dev, Go Modules Reference, GOSUMDB, read 2026-11."""
_PORTS: Final = {"https": 443, "http": 80}
_URL = re.compile(r"https?://[^\s'\"\\]+")
_PIP_URLS: Final = ("index-url", "extra-index-url", "find-links")
"""Settings of pip's by which it finds packages; others, such as `proxy`, are URLs, too. Source: pip documentation, Configuration, read 2026-11."""


class SetError(Exception):
    """A tool cannot be asked; the message says why."""


async def learn_sets(sets: Iterable[HostSet]) -> Mapping[HostSet, Sequence[HostEntry]]:
    """Returns the hosts of sets; those of a tool that cannot be asked are missing, with a warning in the log."""
    learnt: dict[HostSet, Sequence[HostEntry]] = {}

    async def learn(one: HostSet) -> None:
        try:
            learnt[one] = await ask_tool(one)
        except SetError as exc:
            _log.warning("egress.set_unknown", set=str(one), reason=str(exc))

    async with open_task_group() as group:
        for one in dict.fromkeys(sets):
            group.create_task(learn(one))
    return learnt


async def ask_tool(one: HostSet) -> Sequence[HostEntry]:
    """Returns the hosts of a set.

    Raises:
        SetError: its tool is not there, does not answer in time, or names no host.
    """
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            urls = await _ASK[one.name]()
    except TimeoutError:
        raise SetError(f"{one.name} does not answer within {ASK_TIMEOUT_S:g} s") from None
    entries = dict.fromkeys(_entries(urls, is_private=one.is_private))
    if not entries:
        raise SetError(f"{one.name} names no host")
    return tuple(entries)


def _entries(urls: Iterable[str], *, is_private: bool) -> Iterable[HostEntry]:
    for url in urls:
        with suppress(HostError, ValueError):
            parts = urlsplit(url)
            name = canonical_name(parts.hostname or "")
            port = parts.port or _PORTS.get(parts.scheme)
            if port is not None:  # else it is a file of this machine's, or nothing
                yield HostEntry(name=name, port=port, is_private=is_private)


async def _ask_pip() -> Collection[str]:
    pip = (sys.executable, "-m", "pip")
    asked = ["install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps", "--report", "-"]
    report = _read_json(await _run(*pip, *asked, _KNOWN["pip"]))
    try:
        files = [one["download_info"]["url"] for one in report.get("install", ())]
    except (KeyError, TypeError) as exc:
        raise SetError("pip's report has no address of a file in it") from exc
    configured: dict[str, list[str]] = {}
    for line in (await _run(*pip, "config", "list")).splitlines():
        setting, _, value = line.partition("=")
        configured.setdefault(setting.rpartition(".")[2], []).extend(_URL.findall(value))
    indexes = [url for name in _PIP_URLS for url in configured.get(name, ())]
    if not configured.get("index-url"):
        indexes.append((await _run(sys.executable, "-c", _PIP_DEFAULT)).strip())
    return [*indexes, *files]


async def _ask_npm() -> Collection[str]:
    return await _with_files(await _run("npm", "config", "get", "registry"))


async def _ask_pnpm() -> Collection[str]:
    return await _with_files(await _run("pnpm", "config", "get", "registry"))


async def _ask_yarn() -> Collection[str]:
    is_classic = (await _run("yarn", "--version")).startswith("1.")
    setting = "registry" if is_classic else "npmRegistryServer"
    return await _with_files(await _run("yarn", "config", "get", setting))


async def _with_files(registry: str) -> Collection[str]:
    """Returns a registry of npm's kind, and where it says that its files are."""
    url = registry.strip()
    if not _URL.fullmatch(url):
        return ()
    return [url, await _run("npm", "view", "--registry", url, _KNOWN["npm"], "dist.tarball")]


async def _ask_cargo() -> Collection[str]:
    with TemporaryDirectory() as directory:
        said = await _run("sh", "-ec", _INDEX_OF_CARGO, "sh", directory)
    found = _CARGO_ASKS.search(said)
    if found is None:
        return ()
    try:
        async with httpx.AsyncClient(follow_redirects=True) as http:
            config = _read_json((await http.get(found[1])).raise_for_status().text)
    except httpx.HTTPError as exc:
        raise SetError(f"cargo's index does not say where its files are: {exc}") from exc
    # Source: The Cargo Book, Index Format, Index Configuration: `dl` is where crates are, and may have markers in its path.
    return [found[1], str(config.get("dl", ""))]


async def _ask_go() -> Collection[str]:
    proxies, checksums = (await _run("go", "env", "GOPROXY", "GOSUMDB")).splitlines()[:2]
    found = _CHECKSUMS_OF_GO.fullmatch(checksums)
    urls = _URL.findall(re.sub("[,|]", " ", proxies))
    if found is not None and checksums != "off":
        urls.append(found["url"] or f"https://{found['name']}")
    return urls


async def _ask_apt() -> Collection[str]:
    return (await _run("apt-get", "indextargets", "--format", "$(SITE)")).split()


_ASK: Final = {
    "apt": _ask_apt,
    "cargo": _ask_cargo,
    "go": _ask_go,
    "npm": _ask_npm,
    "pip": _ask_pip,
    "pnpm": _ask_pnpm,
    "uv": _ask_pip,
    "yarn": _ask_yarn,
}
"""Uv reads other settings than pip, but installs from the same index where nobody says another one."""


def _read_json(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as exc:
        raise SetError(f"it says {text[:80]!r}") from exc
    return found if isinstance(found, dict) else {}


async def _run(*command: str) -> str:
    """Returns what a command prints. Raises: SetError: it fails, or is not there."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as exc:
        raise SetError(f"{command[0]} cannot be started: {exc}") from exc
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        said = err.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise SetError(f"{command[0]} fails: {said[:200]}")
    return out.decode("utf-8", "replace")

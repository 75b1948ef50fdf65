"""`python -m tests.egress.installs`: docs/installs.md, what package tools print inside of real sandboxes, and what the proxy has counted."""

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog

from app.egress.hosts import HostEntry
from tests.egress.place import Place, hosts_of_packages, open_place

KINDS: Final = ("local", "docker")
COMMANDS: Final = (
    "python3 -m venv v && v/bin/pip install --disable-pip-version-check requests",
    "npm install --no-audit --no-fund --no-update-notifier is-odd && node -p 'require(\"is-odd\")(3)'",
    "curl -sS https://elsewhere.example/",
)
_HEAD: Final = """\
# Package tools inside of sandboxes

Printed by `make installs`, {date}: each command ran in a real sandbox whose network is the hosts of `@pip` and `@npm`, which Orion learnt from
this machine's own tools. Their names are the company's own and stand here as `index-1`, `index-2` and so on; the last command asks for a host that is
not on the list. What the proxy counted is what `orion runs show` and the trace have of a run.
"""


def render(kind: str, command: str, *, printed: str, counted: str) -> str:
    """One command's section."""
    shown = "\n".join(line.rstrip() for line in printed.strip().splitlines())
    return (
        f"\n    $ {command}\n{_indented(shown)}\n\nThe proxy of this {kind} sandbox: {counted}.\n"
    )


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.splitlines())


def masked(text: str, hosts: Sequence[HostEntry]) -> str:
    """The text with numbers in place of names."""
    names = dict.fromkeys(host.name for host in hosts)
    for number, name in enumerate(sorted(names, key=len, reverse=True), start=1):
        text = text.replace(name, f"index-{number}")
    return text


def _counted(place: Place, seen: dict[str, tuple[int, int]]) -> str:
    """What was added since the last command, by hosts."""
    parts = []
    for use in place.tally.uses:
        before = seen.get(use.host, (0, 0))
        now = (use.connections, use.refusals)
        seen[use.host] = now
        if use.connections > before[0]:
            parts.append(
                f"{use.host} {use.connections - before[0]} connections, {use.received_bytes:,} bytes in by now"
            )
        elif use.refusals > before[1]:
            parts.append(f"{use.host} refused ({use.reason})")
    return "; ".join(parts) or "nothing"


async def main() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    hosts = await hosts_of_packages()
    sections = [_HEAD.format(date=datetime.now(UTC).date())]
    for kind in KINDS:
        sections.append(f"\n## {kind}\n")
        with tempfile.TemporaryDirectory(prefix="egress-") as name:
            Path(name).chmod(0o711)  # noqa: ASYNC240 - nothing else goes on yet
            Path(name, "door").mkdir(mode=0o711)  # noqa: ASYNC240 - as above
            async with open_place(kind, Path(name), hosts) as place:
                seen: dict[str, tuple[int, int]] = {}
                for command in COMMANDS:
                    _, printed = await place.run(command)
                    section = render(kind, command, printed=printed, counted=_counted(place, seen))
                    sections.append(masked(section, hosts))
    sys.stdout.write("".join(sections))


if __name__ == "__main__":
    asyncio.run(main())

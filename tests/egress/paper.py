"""`python -m tests.egress.paper`: docs/network.md, from the attempts and from what clouds let through of them."""

import html
import sys
from collections.abc import Sequence

from tests.egress.at_clouds import KINDS, LISTS, REACHED
from tests.egress.bypasses import BYPASSES, ENTRIES

_HEAD = """\
# What a sandbox tries to get out, and what becomes of it

Rendered by `make network` from the attempts in `tests/egress/bypasses.py`; a test keeps them equal.

## At the proxy of local and Docker sandboxes

The list is {entries}. Each attempt is one connection to the proxy of a run, which these sandboxes have and nothing else; it is judged by the
bytes that reach an origin (`tests/unit/egress/test_bypasses.py`). That there is no way around the proxy, from inside of both kinds of sandboxes:
`tests/contract/sandbox_runtime/test_egress.py`, and `tests/e2e/test_canary.py` with a network that is open to one host.

| | attempts | get through | must, and do |
|---|---|---|---|
"""
_CLOUDS = """
## At Vercel and Deno

They have the list as their own policy, by names alone, without a proxy of Orion's. So the same is tried without one, from inside of sandboxes
(`tests/contract/sandbox_runtime/test_cloud_hosts.py`, against emulators of the clouds, not on an account): the host that would be named to a
proxy is dialled, or the address that a look-up would give, and the same bytes are sent; what begins like a client of TLS is one to the end there, which
accepts any certificate, and asks for a page. Judged is which host gets anything of it. The list is {vercel}
at Vercel, which knows no ports and lets a host be reached at all of its own, and {deno} at Deno. What is said to a host of the list is not
looked at: it counts as reached. None of the attempts reaches another host.

Vercel goes by the name in a connection's TLS. Whether such a connection then leads to the host of that name, or to the address that was dialled, its documentation does
not say; the emulator does the worse of the two. So Orion gives each host of the list a rule, which adds a header that says nothing. For hosts with rules Vercel ends
the TLS itself, with an authority of the sandbox's own, and begins one of its own to whomever was dialled, who must have a certificate for that name:
else the keys that such rules are made for would go to whoever a sandbox dials. An address that has none gets the beginning of a TLS connection, with
the name, which below a star the program has chosen, and nothing else that a program said. That Vercel does look at that certificate is concluded, not documented: `orion doctor` and `orion egress check` try it on your account, and fail where it is otherwise.

| | attempts | Vercel: a listed host | Deno: a listed host | another host, at either |
|---|---|---|---|---|
"""


def render() -> str:
    """The document."""
    parts = [_HEAD.format(entries=_listed(ENTRIES))]
    for kind in (*KINDS, "together"):
        cases = [one for one in BYPASSES if kind in (one.kind, "together")]
        controls = sum(one.passes for one in cases)
        parts.append(f"| {kind} | {len(cases) - controls} | 0 | {controls} |\n")
    lists = {cloud: _listed(LISTS[cloud]) for cloud in LISTS}
    parts.append(_CLOUDS.format(**lists))
    for kind in KINDS:
        cases = [one for one in BYPASSES if one.kind == kind]
        row = " | ".join(str(REACHED[cloud][kind]) for cloud in LISTS)
        parts.append(f"| {kind} | {len(cases)} | {row} | 0 |\n")
    parts.append("\n## The attempts\n")
    for kind in KINDS:
        parts.append(f"\n### {kind}\n\n")
        parts += [
            f"- {'passes: ' if one.passes else ''}{_shown(one.what)}\n"
            for one in BYPASSES
            if one.kind == kind
        ]
    return "".join(parts)


def _listed(entries: Sequence[str]) -> str:
    return ", ".join(f"`{entry}`" for entry in entries)


def _shown(text: str) -> str:
    return f"<code>{html.escape(text)}</code>" if any(mark in text for mark in ".:[%") else text


if __name__ == "__main__":
    sys.stdout.write(render())

"""`make clouds` renders docs/clouds.md: what is proven of each provider, and what becomes of each fault at each step.

The rows are the tests' own parameters; tests/unit/test_papers.py holds the paper against them.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.providers.deno import DenoSettings
from sandbox_runtime.providers.deno.provider import DenoProvider
from sandbox_runtime.providers.docker import DockerSettings
from sandbox_runtime.providers.docker.provider import DockerProvider
from sandbox_runtime.providers.local.provider import LocalProvider
from sandbox_runtime.providers.vercel import VercelSettings
from sandbox_runtime.providers.vercel.provider import VercelProvider
from sandbox_runtime.testing.conformance import FACTS, ISOLATION_FACTS, NOT_OF_REMOTES, attach_facts
from sandbox_runtime.types import Capability
from tests.contract.sandbox_runtime import test_deno_faults, test_vercel_faults

HEAD = """\
# Providers, proven

Rendered by `make clouds`; every cell is a test of `make test-all`, and the most telling ones of `make test`. Vercel and Deno: the vendors' own SDKs against emulators of their services
(`tests/emulators`), whose machines really run the commands and enforce the network policies that they are given. `orion sandboxes conformance --provider P`
runs the same facts against a live account.
"""
FAULTS_HEAD = """
## {name}: each fault at each step

One life of a sandbox: made, a command, a file, saved, removed. Afterwards nothing is left there, and nothing was made or run twice.

| step | fault | outcome |
|---|---|---|
"""


def render() -> str:
    """The whole paper."""
    return HEAD + "".join((*_matrix(), *_vercel(), *_deno()))


def _matrix() -> Iterator[str]:
    providers: Sequence[SandboxProvider] = (
        LocalProvider(Path("state")),
        DockerProvider(DockerSettings(name="paper")),
        VercelProvider(VercelSettings(oidc_token="x")),
        DenoProvider(DenoSettings(token="x")),
    )
    names = " | ".join(provider.name for provider in providers)
    yield f"\n## The contract's facts\n\n| fact | {names} |\n|---|{'---|' * len(providers)}\n"
    for fact in (*FACTS, *attach_facts(lambda _owner: providers[0]), *ISOLATION_FACTS):
        cells = []
        for provider in providers:
            is_remote = Capability.REMOTE in provider.capabilities
            if is_remote and fact.name in NOT_OF_REMOTES:
                cells.append(NOT_OF_REMOTES[fact.name])
            elif fact.needs is None or fact.needs in provider.capabilities:
                cells.append("holds")
            else:
                cells.append("lacks it, and says so")
        yield f"| `{fact.name}` | {' | '.join(cells)} |\n"


def _vercel() -> Iterator[str]:
    yield FAULTS_HEAD.format(name="Vercel")
    for table, lasts in ((test_vercel_faults.ONCE, "once"), (test_vercel_faults.ALWAYS, "always")):
        for (step, fault), code in table.items():
            yield f"| {step} | {fault}, {lasts} | {_outcome(code)} |\n"


def _deno() -> Iterator[str]:
    yield FAULTS_HEAD.format(name="Deno")
    spawns = {0: " (boot)", 1: " (command)", 2: " (file)", 3: " (saving)"}
    for endpoint, kind, skip, code in test_deno_faults.TABLE:
        step = f"{endpoint}{spawns[skip]}" if endpoint in ("spawn", "processWait") else endpoint
        yield f"| {step} | {kind.name.lower().replace('_', ' ')} | {_outcome(code)} |\n"


def _outcome(code: object) -> str:
    return "succeeds" if code is None else f"`{str(code).upper()}`"


if __name__ == "__main__":
    sys.stdout.write(render())

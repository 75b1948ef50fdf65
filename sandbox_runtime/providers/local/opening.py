"""Which isolation to use, and whether this machine allows it."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.host import open_view
from sandbox_runtime.providers.local.bubblewrap import BubblewrapIsolation, Tools
from sandbox_runtime.providers.local.place import Isolation
from sandbox_runtime.providers.local.plain import PlainIsolation

IsolationKind = Literal["bubblewrap", "none"]


def open_isolation(
    kind: IsolationKind, *, system: Path, ca_bundle: Path | None, host_env: Mapping[str, str]
) -> Isolation:
    """The isolation of that kind, with its programs found on the host's PATH.

    Raises:
        SandboxError: ISOLATION_UNAVAILABLE when a program is missing.
    """
    host = open_view(host_env)
    path = host_env.get("PATH", os.defpath)
    setpriv, prlimit = (_find(name, path, "util-linux") for name in ("setpriv", "prlimit"))
    if kind == "none":
        return PlainIsolation(prlimit=prlimit, setpriv=setpriv, host=host, ca_bundle=ca_bundle)
    bwrap = _find("bwrap", path, "bubblewrap (0.8 or later)")
    return BubblewrapIsolation(
        tools=Tools(bwrap=bwrap, setpriv=setpriv, prlimit=prlimit),
        system=system,
        host=host,
        ca_bundle=ca_bundle,
    )


def _find(program: str, path: str, package: str) -> str:
    found = shutil.which(program, path=path)
    if found is None:
        raise SandboxError(
            SandboxErrorCode.ISOLATION_UNAVAILABLE, f"{program} is not installed: install {package}"
        )
    return found

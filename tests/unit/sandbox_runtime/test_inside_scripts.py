"""The scripts that run inside sandboxes, put together from their parts."""

import ast
import os
import secrets
import subprocess
import sys
from collections import Counter

import pytest

from sandbox_runtime.providers.inside.kill import kill_processes
from sandbox_runtime.providers.inside_scripts import RUN_SOURCE, script_source

_SCRIPTS = [
    "inside.run",
    "inside.kill",
    "docker.inside.init",
    "vercel.inside.boot",
    "deno.inside.boot",
]
_SLOW = {"asyncio", "collections", "contextlib", "enum", "pathlib", "re", "signal", "typing"}
"""Some of what takes as long to import as Python to start."""


def _names(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            found = (node for target in targets for node in ast.walk(target))
            return [node.id for node in found if isinstance(node, ast.Name)]
        case _:
            return []


@pytest.mark.parametrize("script", _SCRIPTS)
def test_a_script_stands_alone(script: str) -> None:
    """For Python 3.9 it imports nothing of ours, and no part of it redefines what another part has defined."""
    source = script_source(f"sandbox_runtime.providers.{script}")
    tree = ast.parse(source, feature_version=(3, 9))
    modules = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert modules <= {"__future__"}
    defined = Counter(name for statement in tree.body for name in _names(statement))
    assert {name for name, count in defined.items() if count > 1} <= {"TYPE_CHECKING"}


def test_the_runner_starts_quickly() -> None:
    """It starts for every command: it imports nothing slow."""
    imports = [node for node in ast.parse(RUN_SOURCE).body if isinstance(node, ast.Import)]
    assert not {alias.name for node in imports for alias in node.names} & _SLOW


@pytest.mark.parametrize("is_dumpable", [True, False])
def test_none_of_a_user_hides_from_the_kill(is_dumpable: bool) -> None:
    """The files in /proc of a process that is not dumpable are root's; its directory is not."""
    user = 54_321 if os.getuid() == 0 else os.getuid()
    code = f"""
import ctypes, os, time
os.setuid({user})
ctypes.CDLL(None).prctl(4, {int(is_dumpable)}, 0, 0, 0)  # PR_SET_DUMPABLE
print("up", flush=True)
time.sleep(60)
"""
    mark = f"ORION_TEST_MARK={secrets.token_hex(16)}"
    env = {"PATH": os.defpath, **dict([mark.split("=")])}
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code],
        env=env,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"up\n"
        others = user + 1
        assert kill_processes(mark.encode(), user=others) == 0
        if is_dumpable or os.getuid() == 0:  # else its environment can be read by root alone
            assert kill_processes(mark.encode(), user=user) == 1
            assert child.wait(timeout=10) == -9
    finally:
        child.kill()
        child.wait()
        child.stdout.close()

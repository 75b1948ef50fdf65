"""Resource limits as arguments of prlimit (util-linux)."""

from sandbox_runtime.types import SandboxLimits


def limit_arguments(prlimit: str, limits: SandboxLimits, *, count_processes: bool) -> list[str]:
    """What to put before a command. prlimit itself exits with 127 or 126 when it cannot run it, as a shell would.

    Source: prlimit(1) and include/exitcodes.h of util-linux 2.38; setrlimit(2).
    """
    bounds = {
        "as": limits.memory_bytes,
        "fsize": limits.max_file_bytes,
        "nofile": limits.max_open_files,
        "core": 0,
    }
    if count_processes:
        bounds["nproc"] = limits.max_processes
    return [prlimit, *(f"--{name}={bound}:{bound}" for name, bound in bounds.items()), "--"]

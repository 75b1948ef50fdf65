"""The scripts that run inside machines, as their source."""

from importlib.resources import files

_INSIDE = files("sandbox_runtime.providers.vercel") / "inside"

BOOT_SOURCE = (_INSIDE / "boot.py").read_text("utf-8")
RUN_SOURCE = (_INSIDE / "run.py").read_text("utf-8")

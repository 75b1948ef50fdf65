"""The scripts that run inside containers, as their source."""

from importlib.resources import files

_INSIDE = files("sandbox_runtime.providers.docker") / "inside"

INIT_SOURCE = (_INSIDE / "init.py").read_text("utf-8")
RUN_SOURCE = (_INSIDE / "run.py").read_text("utf-8")
KILL_SOURCE = (_INSIDE / "kill.py").read_text("utf-8")

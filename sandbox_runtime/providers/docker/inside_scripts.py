"""The scripts that run inside containers, as their source."""

from sandbox_runtime.providers.inside_scripts import script_source

INIT_SOURCE = script_source("sandbox_runtime.providers.docker.inside.init")
RUN_SOURCE = script_source("sandbox_runtime.providers.docker.inside.run")
KILL_SOURCE = script_source("sandbox_runtime.providers.docker.inside.kill")

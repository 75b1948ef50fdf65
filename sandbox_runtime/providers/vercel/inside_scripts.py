"""The scripts that run inside machines, as their source."""

from sandbox_runtime.providers.inside_scripts import script_source

BOOT_SOURCE = script_source("sandbox_runtime.providers.vercel.inside.boot")
RUN_SOURCE = script_source("sandbox_runtime.providers.vercel.inside.run")

"""The scripts that run inside sandboxes, as their source."""

from sandbox_runtime.providers.inside_scripts import script_source

RUN_SOURCE = script_source("sandbox_runtime.providers.deno.inside.run")
KILL_SOURCE = script_source("sandbox_runtime.providers.deno.inside.kill")
BOOT_SOURCE = script_source("sandbox_runtime.providers.deno.inside.boot")

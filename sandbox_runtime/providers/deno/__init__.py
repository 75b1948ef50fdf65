"""Sandboxes as microVMs of Deno Deploy."""

from sandbox_runtime.providers.deno.provider import DenoProvider
from sandbox_runtime.providers.deno.settings import DenoSettings

__all__ = ["DenoProvider", "DenoSettings"]

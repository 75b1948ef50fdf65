"""Which providers there are: name -> class, imported on first use."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import cast

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import SandboxProvider

PROVIDERS: Mapping[str, str] = {
    "deno": "sandbox_runtime.providers.deno:DenoProvider",
    "docker": "sandbox_runtime.providers.docker:DockerProvider",
    "fake": "sandbox_runtime.testing.fake:FakeProvider",
    "local": "sandbox_runtime.providers.local:LocalProvider",
    "vercel": "sandbox_runtime.providers.vercel:VercelProvider",
}


def load_provider(
    name: str, *, providers: Mapping[str, str] = PROVIDERS
) -> Callable[..., SandboxProvider]:
    """The provider's class; each takes its own arguments.

    Raises:
        ValueError: no such provider; the message lists those there are.
        SandboxError: UNSUPPORTED when the package it needs is not installed.
    """
    if name not in providers:
        raise ValueError(
            f"unknown sandbox provider {name!r}; known: {', '.join(sorted(providers))}"
        )
    module_name, _, class_name = providers[name].partition(":")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as exc:
        raise SandboxError(
            SandboxErrorCode.UNSUPPORTED,
            f"sandbox provider {name!r} needs the package {exc.name!r}: install the extra {name!r} (pip install 'orion[{name}]')",
        ) from exc
    return cast("Callable[..., SandboxProvider]", getattr(module, class_name))

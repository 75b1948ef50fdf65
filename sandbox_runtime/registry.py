"""Which providers there are, and where each is described; their clients are imported on first use."""

from collections.abc import Callable, Mapping
from functools import cache
from pkgutil import resolve_name
from typing import Final, cast

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import ProviderSpec, SandboxProvider, ServiceContext

_SPECS: Final[Mapping[str, str]] = {
    "local": "sandbox_runtime.providers.local:SPEC",
    "docker": "sandbox_runtime.providers.docker:SPEC",
    "vercel": "sandbox_runtime.providers.vercel:SPEC",
    "deno": "sandbox_runtime.providers.deno:SPEC",
}
"""Of two clouds that are set up, `cloud` means the first."""


def provider_names() -> tuple[str, ...]:
    """Returns the names of those that a service can use, in the order of the registry."""
    return tuple(_SPECS)


@cache
def provider_spec(name: str) -> ProviderSpec:
    """Returns what is known of the provider of that name. Raises: ValueError: unknown name; the message lists the known ones."""
    if name not in _SPECS:
        raise ValueError(f"unknown sandbox provider {name!r}; known: {', '.join(sorted(_SPECS))}")
    spec: ProviderSpec = resolve_name(_SPECS[name])
    return spec


def provider_specs() -> tuple[ProviderSpec, ...]:
    """Returns what is known of all, in the order of the registry."""
    return tuple(map(provider_spec, _SPECS))


PROVIDERS: Mapping[str, str] = {
    **{spec.name: spec.provider for spec in provider_specs()},
    "fake": "sandbox_runtime.testing.fake:FakeProvider",
}
"""Their classes, and that of the fake, by names."""


def load_provider(
    name: str, *, providers: Mapping[str, str] = PROVIDERS
) -> Callable[..., SandboxProvider]:
    """Returns the provider's class; each takes its own arguments.

    Raises:
        ValueError: no such provider; the message lists those there are.
        SandboxError: UNSUPPORTED when the package it needs is not installed.
    """
    if name not in providers:
        raise ValueError(
            f"unknown sandbox provider {name!r}; known: {', '.join(sorted(providers))}"
        )
    return cast("Callable[..., SandboxProvider]", _resolve(name, providers[name]))


def create_provider(name: str, context: ServiceContext) -> SandboxProvider:
    """Returns the provider of that name, made for a service; nothing is touched before it is opened.

    Raises:
        ValueError: no such provider, or settings, region or limits that it cannot have.
        SandboxError: UNSUPPORTED when the package it needs is not installed.
    """
    create = cast(
        "Callable[[ServiceContext], SandboxProvider]", _resolve(name, provider_spec(name).create)
    )
    made = create(context)
    if made.name != name:
        raise ValueError(
            f"sandbox provider {name!r} calls itself {made.name!r}: set `name` of {type(made).__name__}"
        )
    return made


def _resolve(name: str, place: str) -> object:
    try:
        found: object = resolve_name(place)
    except ModuleNotFoundError as exc:
        if (exc.name or "").startswith("sandbox_runtime"):
            raise  # no extra would help
        raise SandboxError(
            SandboxErrorCode.UNSUPPORTED,
            f"sandbox provider {name!r} needs the package {exc.name!r}: install the extra {name!r} (pip install 'orion[{name}]')",
        ) from exc
    return found

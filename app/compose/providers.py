"""Which sandbox provider is used, and why; made from the settings."""

import asyncio
import hashlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app.runs.options import CLOUD
from app.settings.settings import Settings, default_ca_bundle, host_environment, set_for_sdk
from app.store.runs import SqlRunStore, open_store
from sandbox_runtime import registry
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import ProviderSpec, SandboxProvider, ServiceContext
from sandbox_runtime.registry import provider_names, provider_spec, provider_specs

ENGINE_TIMEOUT_S = 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderChoice:
    """A provider's name, and in a few words why it is that one."""

    name: str
    reason: str


async def choose_provider(settings: Settings) -> ProviderChoice:
    """Returns the provider that is set; with `auto` the first whose credentials are there, else one that a try of it finds, else what is left."""
    if settings.sandbox.provider != "auto":
        return ProviderChoice(name=settings.sandbox.provider, reason="ORION_SANDBOX names it")
    is_mounted = settings.mount is not None and not settings.mount.is_overlay
    by_auto = {spec.auto: spec for spec in reversed(provider_specs())}
    fallback = by_auto["fallback"]
    if is_mounted:
        return ProviderChoice(name=fallback.name, reason="ORION_MOUNT_DIR asks for it")
    by_credentials = by_auto.get("credentials")
    if by_credentials is not None and settings.sandbox.is_set_up(by_credentials):
        return ProviderChoice(name=by_credentials.name, reason="its credentials are set")
    probed = by_auto["probe"]
    try:
        async with asyncio.timeout(ENGINE_TIMEOUT_S), create_named(settings, probed.name) as one:
            finding = await one.probe()
    except SandboxError as exc:
        return ProviderChoice(name=fallback.name, reason=f"no {probed.name.capitalize()}: {exc}")
    except TimeoutError:
        reason = f"no {probed.name.capitalize()}: the engine does not answer"
        return ProviderChoice(name=fallback.name, reason=reason)
    return ProviderChoice(name=probed.name, reason=finding)


async def join_installation(settings: Settings, store: SqlRunStore) -> Settings:
    """Returns the settings with the name that sandboxes have for all processes on the store's database; SQLite's are one process's."""
    if isinstance(settings.database, Path):
        return settings
    return replace(settings, namespace=(await store.installation.load()).namespace)


async def with_namespace(settings: Settings) -> Settings:
    """Returns the same for who has no store open.

    Raises:
        UnreadableStoreError
    """
    if isinstance(settings.database, Path):
        return settings
    async with open_store(settings.database) as store:
        return await join_installation(settings, store)


def create_provider(settings: Settings, choice: ProviderChoice, owner: str = "") -> SandboxProvider:
    """Returns that provider; nothing is touched before it is opened. `owner`: as `ServiceContext` has it.

    Raises:
        SandboxError: UNSUPPORTED when the package that it needs is not installed.
    """
    return create_named(settings, choice.name, owner)


def create_local(settings: Settings) -> SandboxProvider:
    """Returns the provider of sandboxes on this machine."""
    return create_named(settings, "local")


def create_named(settings: Settings, name: str, owner: str = "") -> SandboxProvider:
    """Returns the provider of that name, whatever is chosen: threads may have saved something there. `owner`: as `ServiceContext` has it.

    Raises:
        SandboxError: UNSUPPORTED also when there is none of that name.
    """
    if name not in provider_names():
        raise SandboxError(SandboxErrorCode.UNSUPPORTED, f"there is no provider {name!r} here")
    spec = provider_spec(name)
    set_for_sdk(spec.sdk_environment)
    environment = host_environment()
    context = ServiceContext(
        values=settings.sandbox.provider_values(spec),
        namespace=settings.namespace or _namespace(settings),
        state_dir=settings.service.state_dir,
        region=settings.sandbox.region_of(name) or next(iter(spec.regions), ""),
        vcpus=settings.sandbox.vcpus,
        run_timeout_s=settings.limits.run_timeout_s,
        git_name=settings.repositories.git_name,
        git_email=settings.repositories.git_email,
        ca_bundle=settings.sandbox.ca_bundle or default_ca_bundle(environment),
        host_env=environment,
        owner=owner,
    )
    try:
        return registry.create_provider(name, context)
    except ValueError as exc:  # credentials, region or limits that this one cannot have
        raise SandboxError(SandboxErrorCode.UNSUPPORTED, str(exc)) from exc


def _namespace(settings: Settings) -> str:
    """Returns a name of this state directory: another one is another Orion, even on the same engine or in the same account."""
    return f"s{hashlib.sha256(str(settings.service.state_dir).encode()).hexdigest()[:10]}"


def usable_clouds(settings: Settings) -> Sequence[str]:
    """Returns the usable providers that are no machine of the operator's."""
    return [
        name
        for word, name in usable_words(settings).items()
        if word == name and provider_spec(name).is_cloud
    ]


def usable_words(settings: Settings) -> Mapping[str, str]:
    """Returns what a message may ask for, and the provider that it then gets: those that this Orion is set up for."""
    if settings.mount is not None and not settings.mount.is_overlay:
        return {}
    usable = [spec for spec in provider_specs() if _is_usable(settings, spec)]
    clouds = [spec.name for spec in usable if spec.is_cloud]
    return {spec.name: spec.name for spec in usable} | ({CLOUD: clouds[0]} if clouds else {})


def _is_usable(settings: Settings, spec: ProviderSpec) -> bool:
    is_installed = not spec.package or importlib.util.find_spec(spec.package) is not None
    # One without isolation is for the operator to choose, not for whoever asks.
    is_meant = spec.is_isolated or settings.sandbox.provider == spec.name
    return is_installed and is_meant and settings.sandbox.is_set_up(spec)

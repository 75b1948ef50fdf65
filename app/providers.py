"""Which sandbox provider is used, and why; made from the settings."""

import asyncio
import hashlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import SecretStr

from app.config import Settings, default_ca_bundle, disable_telemetry, host_environment
from app.runs.option_values import CLOUD
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.registry import load_provider

ENGINE_TIMEOUT_S = 12.0
_HERE = ("local", "docker")
"""Providers whose sandboxes are on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A provider's name, and in a few words why it is that one."""

    name: str
    reason: str


async def choose_provider(settings: Settings) -> Choice:
    """As set; with `auto` Vercel if its credentials are there, else Docker where an engine answers, else local."""
    if settings.orion_sandbox != "auto":
        return Choice(name=settings.orion_sandbox, reason="ORION_SANDBOX names it")
    if settings.mount is not None and not settings.mount.is_overlay:
        return Choice(name="local", reason="ORION_MOUNT_DIR asks for it")
    if _has_vercel(settings):
        return Choice(name="vercel", reason="its credentials are set")
    try:
        async with asyncio.timeout(ENGINE_TIMEOUT_S), create_docker(settings) as docker:
            finding = await docker.probe()
    except SandboxError as exc:
        return Choice(name="local", reason=f"no Docker: {exc}")
    except TimeoutError:
        return Choice(name="local", reason="no Docker: the engine does not answer")
    return Choice(name="docker", reason=finding)


def create_provider(settings: Settings, choice: Choice) -> SandboxProvider:
    """That provider; nothing is touched before it is opened.

    Raises:
        SandboxError: UNSUPPORTED when the package that it needs is not installed.
    """
    return create_named(settings, choice.name)


def create_named(settings: Settings, name: str) -> SandboxProvider:
    """The same by its name, whatever is chosen: threads may have saved something there.

    Raises:
        SandboxError: UNSUPPORTED also when there is none of that name.
    """
    if name not in _CREATE:
        raise SandboxError(SandboxErrorCode.UNSUPPORTED, f"there is no provider {name!r} here")
    try:
        return _CREATE[name](settings)
    except ValueError as exc:  # credentials, region or limits that this one cannot have
        raise SandboxError(SandboxErrorCode.UNSUPPORTED, str(exc)) from exc


def create_local(settings: Settings) -> SandboxProvider:
    """Sandboxes on this machine."""
    environment = host_environment()
    return load_provider("local")(
        state_dir=settings.orion_state_dir,
        isolation=settings.orion_local_isolation,
        ca_bundle=settings.orion_ca_bundle or default_ca_bundle(environment),
        host_env=environment,
    )


def create_docker(settings: Settings) -> SandboxProvider:
    """Sandboxes in containers of this machine's engine.

    Raises:
        SandboxError: UNSUPPORTED when aiodocker is not installed.
    """
    load = load_provider("docker")  # says which extra is missing, before the import below would
    from sandbox_runtime.providers.docker import DockerSettings  # noqa: PLC0415 - an extra

    environment = host_environment()
    return load(
        DockerSettings(
            name=_namespace(settings),
            docker_host=settings.docker_host,
            image=settings.orion_docker_image,
            runtime=settings.orion_docker_runtime,
            cpus=settings.orion_sandbox_vcpus,
            git_name=settings.orion_git_name,
            git_email=settings.orion_git_email,
            ca_bundle=settings.orion_ca_bundle or default_ca_bundle(environment),
            host_env=environment,
        )
    )


def create_vercel(settings: Settings) -> SandboxProvider:
    """Sandboxes in Vercel's cloud.

    Raises:
        SandboxError: UNSUPPORTED when vercel-sandbox is not installed.
        ValueError: a setting that it cannot have, or no credentials.
    """
    load = load_provider("vercel")
    disable_telemetry()
    from sandbox_runtime.providers.vercel import VercelSettings  # noqa: PLC0415 - an extra

    return load(
        VercelSettings(
            token=_secret(settings.vercel_token),
            team_id=settings.vercel_team_id,
            project_id=settings.vercel_project_id,
            oidc_token=_secret(settings.vercel_oidc_token),
            api_url=settings.orion_vercel_api_url,
            name=_namespace(settings),
            region=settings.region_of("vercel") or "iad1",
            vcpus=int(settings.orion_sandbox_vcpus),
            lifetime_s=max(settings.orion_run_timeout_s, 60.0),
        )
    )


def create_deno(settings: Settings) -> SandboxProvider:
    """Sandboxes in Deno's cloud.

    Raises:
        SandboxError: UNSUPPORTED when deno-sandbox is not installed.
        ValueError: a setting that it cannot have, or no token.
    """
    load = load_provider("deno")
    from sandbox_runtime.providers.deno import DenoSettings  # noqa: PLC0415 - an extra

    return load(
        DenoSettings(
            token=_secret(settings.deno_deploy_token) or "",
            region=settings.region_of("deno") or "ord",
            name=_namespace(settings),
            api_url=settings.orion_deno_api_url,
            state_dir=settings.orion_state_dir / "deno",
            git_name=settings.orion_git_name,
            git_email=settings.orion_git_email,
        )
    )


def _secret(value: SecretStr | None) -> str | None:
    return None if value is None else value.get_secret_value()


def _namespace(settings: Settings) -> str:
    """Another state directory is another Orion, even on the same engine or in the same account."""
    return f"s{hashlib.sha256(str(settings.orion_state_dir).encode()).hexdigest()[:10]}"


def usable_clouds(settings: Settings) -> Sequence[str]:
    """Those of them that are no machine of the operator's."""
    return [
        name for word, name in usable_words(settings).items() if word == name and name not in _HERE
    ]


def usable_words(settings: Settings) -> Mapping[str, str]:
    """What a message may ask for, and the provider that it then gets: those that this Orion is set up for."""
    if settings.mount is not None and not settings.mount.is_overlay:
        return {}
    names = [name for name, is_set_up in _IS_SET_UP.items() if is_set_up(settings)]
    clouds = [name for name in names if name not in _HERE]
    return {name: name for name in names} | ({CLOUD: clouds[0]} if clouds else {})


def _has_vercel(settings: Settings) -> bool:
    named = (settings.vercel_token, settings.vercel_team_id, settings.vercel_project_id)
    return all(named) or settings.vercel_oidc_token is not None


def _has_docker(_settings: Settings) -> bool:
    return importlib.util.find_spec("aiodocker") is not None


_IS_SET_UP: dict[str, Callable[[Settings], bool]] = {
    "local": lambda _settings: True,
    "docker": _has_docker,
    "vercel": _has_vercel,
    "deno": lambda settings: settings.deno_deploy_token is not None,
}
_CREATE: dict[str, Callable[[Settings], SandboxProvider]] = {
    "local": create_local,
    "docker": create_docker,
    "vercel": create_vercel,
    "deno": create_deno,
}
PROVIDER_NAMES = tuple(_CREATE)

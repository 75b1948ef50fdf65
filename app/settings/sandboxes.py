"""Settings of sandboxes; those of single providers come from their specs."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, SecretStr, create_model, model_validator

from app.runs.session import Mount
from app.settings.group import Hosts, SettingsGroup, existing_file, one_of, whole_path
from sandbox_runtime.provider import ProviderSpec
from sandbox_runtime.registry import provider_names, provider_spec, provider_specs

AFTER_THE_AGENT_S = 120.0
"""For what a run does after its agent's end, where a sandbox does not live longer."""


def _fields_of_providers() -> Mapping[str, Any]:
    fields: dict[str, Any] = {}
    for one in (one for spec in provider_specs() for one in spec.settings):
        kind: Any = SecretStr if one.is_secret else str
        if one.choices:
            kind = Annotated[kind, one_of(one.choices)]
        field = Field(one.default, alias=one.name, description=one.description)
        fields[one.name.lower()] = (kind if one.default is not None else kind | None, field)
    return fields


if TYPE_CHECKING:
    _SettingsOfProviders = SettingsGroup
else:
    _SettingsOfProviders = create_model(
        "_SettingsOfProviders", __base__=SettingsGroup, **_fields_of_providers()
    )


class SandboxSettings(_SettingsOfProviders):
    model_config = ConfigDict(title="Sandboxes")

    provider: Annotated[str, one_of(("auto", *provider_names()))] = Field(
        "auto",
        alias="ORION_SANDBOX",
        description=f"Where agents run: {', '.join(provider_names())}; auto: vercel with its credentials, else docker where an engine answers, else local.",
    )
    vcpus: float = Field(
        4,
        gt=0,
        le=256,
        alias="ORION_SANDBOX_VCPUS",
        description="Processors (docker; vercel: whole ones).",
    )
    memory_mib: int = Field(
        4096,
        ge=256,
        alias="ORION_SANDBOX_MEMORY_MIB",
        description="Address space per process (local), or memory of the sandbox (docker).",
    )
    disk_mib: int = Field(
        10_240,
        ge=64,
        alias="ORION_SANDBOX_DISK_MIB",
        description="Files of a thread, of the agent's home and of /tmp together; beyond it the run ends.",
    )
    warm_pool_size: int | None = Field(
        None,
        ge=0,
        le=100,
        alias="ORION_WARM_POOL_SIZE",
        description="Sandboxes that wait, with the agent loaded where it can be, each for one new thread; default: 1, but 0 where an idle sandbox costs money, and 0 in any case with ORION_MOUNT_DIR.",
    )
    region: str | None = Field(
        None,
        alias="ORION_SANDBOX_REGION",
        description="Where cloud sandboxes run, one region for each cloud: vercel iad1 (the default) or another of its regions; deno ord (the default) or ams.",
    )
    egress_hosts: Hosts = Field(
        (),
        alias="ORION_EGRESS_HOSTS",
        description="Hosts that sandboxes may reach beside the model: api.example.com, api.example.com:8443, *.example.com; with :80 plain HTTP, to read; @pip, @npm, @pnpm, @yarn, @uv, @cargo, @go, @apt for what these tools on this machine install from, or packages (@pip, @npm, @uv and @apt); private: before one that leads to a private address. Empty = none.",
    )
    ca_bundle: Annotated[Path, AfterValidator(existing_file)] | None = Field(
        None,
        alias="ORION_CA_BUNDLE",
        description="CA bundle for package installs inside; default: the one the environment names.",
    )
    mount_dir: Annotated[Path, AfterValidator(whole_path)] | None = Field(
        None,
        alias="ORION_MOUNT_DIR",
        description="For developers: a directory that agents work in, instead of their threads' own files.",
    )
    mount_overlay: bool = Field(
        default=False,
        alias="ORION_MOUNT_OVERLAY",
        description="Agents get a copy of ORION_MOUNT_DIR when their thread begins, and it stays untouched.",
    )

    @property
    def mount(self) -> Mount | None:
        if self.mount_dir is None:
            return None
        return Mount(directory=self.mount_dir, is_overlay=self.mount_overlay)

    def provider_values(self, spec: ProviderSpec) -> Mapping[str, str | None]:
        """Returns what is set of one provider, by names, secrets in plain."""
        return {one.name: self._text_of(one.name) for one in spec.settings}

    def is_set_up(self, spec: ProviderSpec) -> bool:
        """Whether a provider has the credentials that it needs."""
        values = self.provider_values(spec)
        return not spec.credentials or any(
            all(values[name] for name in group) for group in spec.credentials
        )

    @property
    def is_unisolated(self) -> bool:
        """Whether local sandboxes are plain processes."""
        return self._text_of("ORION_LOCAL_ISOLATION") == "none"

    def region_of(self, cloud: str) -> str | None:
        """Returns the one of the regions that are set that is that cloud's."""
        regions = provider_spec(cloud).regions
        return next((word for word in self._regions if word in regions), None)

    def find_conflicts(self, run_timeout_s: float) -> Iterator[str]:
        """Yields what the chosen provider lacks, or cannot have of processors and time."""
        if self.provider == "auto":
            return
        spec = provider_spec(self.provider)
        if not self.is_set_up(spec):
            yield f"ORION_SANDBOX: {spec.name} needs {_needed(spec)}"
        if spec.max_lifetime_s is not None:
            most_s = spec.max_lifetime_s - AFTER_THE_AGENT_S
            if run_timeout_s > most_s:
                yield f"ORION_RUN_TIMEOUT_S: a {spec.name} sandbox lives for {spec.max_lifetime_s / 60:g} minutes, so a run has {most_s:g} s at most (is {run_timeout_s:g})"
        if spec.max_vcpus is not None and self.vcpus > spec.max_vcpus:
            yield f"ORION_SANDBOX_VCPUS: {spec.name} gives {spec.max_vcpus:g} at most, by plan (is {self.vcpus:g})"
        elif spec.has_whole_vcpus and self.vcpus % 1:
            yield f"ORION_SANDBOX_VCPUS: {spec.name} has whole processors (is {self.vcpus:g})"

    @model_validator(mode="after")
    def _check_regions(self) -> "SandboxSettings":
        regions = {spec.name: sorted(spec.regions) for spec in provider_specs() if spec.regions}
        clouds = (self.provider,) if self.provider in regions else tuple(regions)
        known = "; ".join(f"{cloud}: {', '.join(regions[cloud])}" for cloud in clouds)
        words = self._regions
        for word in words:
            if not any(word in of_cloud for of_cloud in regions.values()):
                raise ValueError(f"ORION_SANDBOX_REGION: no region {word!r} ({known})")
        if words and not any(self.region_of(cloud) for cloud in clouds):
            raise ValueError(f"ORION_SANDBOX_REGION: no region {' '.join(words)!r} ({known})")
        for cloud, of_cloud in regions.items():
            if len(several := [word for word in words if word in of_cloud]) > 1:
                raise ValueError(
                    f"ORION_SANDBOX_REGION: {' and '.join(several)} are both {cloud}'s; one for each cloud"
                )
        return self

    @property
    def _regions(self) -> Sequence[str]:
        return (self.region or "").lower().replace(",", " ").split()

    def _text_of(self, name: str) -> str | None:
        value: SecretStr | str | None = getattr(self, name.lower())
        return value.get_secret_value() if isinstance(value, SecretStr) else value


def token_fields() -> tuple[str, ...]:
    """Returns the names, in lower case, of all that a keyring may hold."""
    return tuple(name.lower() for spec in provider_specs() for name in spec.tokens)


def _needed(spec: ProviderSpec) -> str:
    groups = [
        " and ".join(filter(None, (", ".join(group[:-1]), group[-1]))) for group in spec.credentials
    ]
    return f"{', or '.join(groups)}; `orion setup {spec.name}` asks for them"

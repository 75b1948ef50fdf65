"""Sandboxes on this machine: bubblewrap, or plain processes by explicit choice."""

from sandbox_runtime.provider import ProviderSetting, ProviderSpec

SPEC = ProviderSpec(
    name="local",
    provider=f"{__name__}.provider:LocalProvider",
    create=f"{__name__}.provider:create",
    fix="install bubblewrap, or set ORION_LOCAL_ISOLATION=none knowingly",
    settings=(
        ProviderSetting(
            name="ORION_LOCAL_ISOLATION",
            description="none = no isolation at all; only for a machine you would give to the agent.",
            default="bubblewrap",
            choices=("bubblewrap", "none"),
        ),
    ),
    auto="fallback",
    has_mount=True,
)

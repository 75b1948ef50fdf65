"""Sandboxes as directories: what is known of them without a client, which nothing here imports."""

from sandbox_runtime.provider import ProviderSpec

SPEC = ProviderSpec(
    name="NAME",
    provider=f"{__name__}.provider:NameProvider",
    create=f"{__name__}.provider:create",
    fix="choose another ORION_SANDBOX",
    is_isolated=False,
)

"""Does it really work? Asked by running something in a sandbox."""

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.probing import PROBE_TIMEOUT_S, probing
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.providers.vercel.settings import VercelSettings
from sandbox_runtime.sandbox_user import USER
from sandbox_runtime.types import SandboxSpec


async def probe(provider: SandboxProvider, settings: VercelSettings) -> str:
    """One line on what was found.

    Raises:
        SandboxError: UNAVAILABLE, ISOLATION_UNAVAILABLE, with the reason.
    """
    async with probing("a sandbox at Vercel"):
        sandbox = await provider.create(SandboxSpec())
        try:
            found = await sandbox.exec(["id", "-un"], timeout_s=PROBE_TIMEOUT_S)
        finally:
            await sandbox.destroy()
    if found.text.strip() != USER:
        raise SandboxError(
            SandboxErrorCode.ISOLATION_UNAVAILABLE,
            f"commands in the image {settings.image} do not run as {USER}",
        )
    return f"Vercel Sandbox in {settings.region}: a microVM each, {settings.vcpus} processors, no way to root"

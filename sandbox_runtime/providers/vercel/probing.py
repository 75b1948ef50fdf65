"""Does it really work? Asked by running something in a sandbox."""

import asyncio

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.providers.vercel.looking import USER
from sandbox_runtime.providers.vercel.settings import VercelSettings
from sandbox_runtime.types import SandboxSpec

PROBE_TIMEOUT_S = 10.0


async def probe(provider: SandboxProvider, settings: VercelSettings) -> str:
    """One line on what was found.

    Raises:
        SandboxError: UNAVAILABLE, ISOLATION_UNAVAILABLE, with the reason.
    """
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            sandbox = await provider.create(SandboxSpec())
            try:
                found = await sandbox.exec(["id", "-un"], timeout_s=PROBE_TIMEOUT_S)
            finally:
                await sandbox.destroy()
    except TimeoutError as exc:
        raise SandboxError(
            SandboxErrorCode.UNAVAILABLE,
            f"no answer from a sandbox at Vercel within {PROBE_TIMEOUT_S:g} s",
            retryable=True,
        ) from exc
    if found.text.strip() != USER:
        raise SandboxError(
            SandboxErrorCode.ISOLATION_UNAVAILABLE,
            f"commands in the image {settings.image} do not run as {USER}",
        )
    return f"Vercel Sandbox in {settings.region}: a microVM each, {settings.vcpus} processors, no way to root"

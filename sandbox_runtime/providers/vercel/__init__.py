"""Sandboxes as microVMs of Vercel Sandbox."""

from sandbox_runtime.providers.vercel.provider import VercelProvider
from sandbox_runtime.providers.vercel.settings import VercelSettings

__all__ = ["VercelProvider", "VercelSettings"]

"""Sandboxes on this machine: bubblewrap, or plain processes by explicit choice."""

from sandbox_runtime.providers.local.provider import LocalProvider

__all__ = ["LocalProvider"]

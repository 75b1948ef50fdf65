"""What tests have to do with HTTP clients: what they give their own, and what others' leave."""

import ssl
from typing import Final

NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts nobody. For clients that ask servers on this machine: certificates take each client 40 ms to load."""

_STREAMS = "Response.aiter_raw|BoundAsyncStream|AsyncResponseStream|PoolByteStream|HTTP11ConnectionByteStream|AsyncHTTP11Connection"
LEFT_STREAMS: Final = f"ignore:Exception ignored in. <async_generator object ({_STREAMS}):pytest.PytestUnraisableExceptionWarning"
"""For tests that cancel Vercel's clients (vercel 0.10, over httpx2): they close no stream then, and the collector may come upon any of its generators while it is at work."""

"""What tests give their HTTP clients, which ask servers on this machine: no certificates, which take each client 40 ms to load."""

import ssl
from typing import Final

NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts nobody."""

"""Certificates that sign themselves, for servers of tests."""

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The files of one, in PEM."""

    certificate: Path
    key: Path

    def server(self) -> ssl.SSLContext:
        """Returns what a server shows it by."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


async def issue(directory: Path, name: str) -> Certificate:
    """Makes one for a host's name, good for two days."""
    made = Certificate(certificate=directory / f"{name}.pem", key=directory / f"{name}.key")
    names = ("-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}")
    openssl = await asyncio.create_subprocess_exec(
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names),
        *("-keyout", made.key, "-out", made.certificate),
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert await openssl.wait() == 0
    return made

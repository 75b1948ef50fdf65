"""Certificates for servers of tests: by an authority of its own each, or all by one."""

import asyncio
import ssl
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_LIFE = timedelta(days=2)


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
    """Makes one for a host's name that signs itself, good for two days."""
    made = Certificate(certificate=directory / f"{name}.pem", key=directory / f"{name}.key")
    names = ("-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}")
    openssl = await asyncio.create_subprocess_exec(
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names),
        *("-keyout", made.key, "-out", made.certificate),
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert await openssl.wait() == 0
    return made


class Authority:
    """Signs certificates for any names, good for two days, in memory."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named("authority of tests")
        may_sign = x509.BasicConstraints(ca=True, path_length=0)
        builder = self._builder(self._name, self._key).add_extension(may_sign, critical=True)
        signed = builder.sign(self._key, hashes.SHA256())
        self.pem = signed.public_bytes(Encoding.PEM).decode()
        """Who trusts it trusts all that this authority signs."""
        self.server = cache(self._server)
        """Name -> what a server shows that it has it by."""

    def _server(self, name: str) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.DNSName(name)])
        builder = self._builder(_named("a server of tests"), key)
        signed = builder.add_extension(names, critical=False).sign(self._key, hashes.SHA256())
        with tempfile.NamedTemporaryFile() as file:
            file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
            file.write(signed.public_bytes(Encoding.PEM))
            file.flush()
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(file.name)
        return context

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _LIFE)
            .not_valid_after(now + _LIFE)
        )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

"""A GitHub App at a GitHub of our own: where it is installed, and the tokens that it is given.

Source: GitHub, "Authenticating as a GitHub App", "Generating an installation access token for a GitHub App", read 2026-11: a JWT lives for ten
minutes at most, tokens for an hour; since 2026 they are `ghs_`, the App's number and a JWT.
"""

import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from tests.github_accounts import CLIENT_ID

NUMBER = 4711
_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PRIVATE_KEY = _KEY.private_bytes(
    Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()
).decode()
_PUBLIC_KEY = _KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@dataclass
class GitHubApp:
    """Installed for all in `repositories`, in one installation."""

    repositories: set[str]
    """`owner/name`."""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    tokens: dict[str, str] = field(default_factory=dict)
    """Repositories, by the tokens that were given."""
    looks: int = 0
    status: int = 0
    """Of all answers; 0 = all is well."""

    def add_to(self, app: FastAPI, *, api: str = "") -> None:
        app.get(f"{api}/repos/{{owner}}/{{name}}/installation")(self._installation)
        app.post(f"{api}/app/installations/{{number}}/access_tokens")(self._token)

    def app(self) -> FastAPI:
        app = FastAPI()
        self.add_to(app)
        return app

    def _refusal(self, request: Request) -> Response | None:
        if self.status:
            return JSONResponse({"message": "no"}, status_code=self.status)
        said = request.headers.get("authorization", "").removeprefix("Bearer ")
        try:
            claims = jwt.decode(
                said,
                _PUBLIC_KEY,
                algorithms=["RS256"],
                options={"verify_exp": False, "verify_iat": False},
            )
        except jwt.InvalidTokenError:
            return JSONResponse({"message": "Bad credentials"}, status_code=401)
        at = self.now.timestamp()
        life_s = claims["exp"] - claims["iat"]
        is_good = claims["iss"] == CLIENT_ID and claims["iat"] <= at < claims["exp"]
        if not is_good or life_s > timedelta(minutes=10).total_seconds():
            return JSONResponse({"message": "'Expiration time' claim"}, status_code=401)
        return None

    async def _installation(self, owner: str, name: str, request: Request) -> Response:
        self.looks += 1
        if (refusal := self._refusal(request)) is not None:
            return refusal
        if f"{owner}/{name}" not in self.repositories:
            return JSONResponse({"message": "Not Found"}, status_code=404)
        return JSONResponse({"id": 7, "account": {"login": owner}})

    async def _token(self, number: int, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        assert number == 7
        (wanted,) = (await request.json())["repositories"]
        (name,) = [one for one in self.repositories if one.partition("/")[2] == wanted]
        token = f"ghs_{NUMBER}_eyJhbGciOiJSUzI1NiJ9.{secrets.token_urlsafe(60)}.{secrets.token_urlsafe(30)}"
        self.tokens[token] = name
        expires_at = (self.now + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        return JSONResponse({"token": token, "expires_at": expires_at}, status_code=201)

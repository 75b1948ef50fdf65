"""Credentials for the API, explicit: the SDK's own search would prefer an expired token of the environment."""

import base64
import binascii
import json
import time
from typing import Any

from vercel.sandbox import SandboxCredentials

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.providers.vercel.settings import VercelSettings


class Credentials:
    """A credentials factory of the SDK, which asks for each request."""

    def __init__(self, settings: VercelSettings) -> None:
        self._settings = settings

    async def __call__(self) -> SandboxCredentials:
        """Raises: SandboxError: UNAVAILABLE for an OIDC token that has expired or is none."""
        settings = self._settings
        if settings.token and settings.team_id and settings.project_id:
            return SandboxCredentials(
                token=settings.token, team_id=settings.team_id, project_id=settings.project_id
            )
        token = settings.oidc_token or ""
        claims = _claims(token)
        try:
            expires_at = float(claims["exp"])
            team_id, project_id = str(claims["owner_id"]), str(claims["project_id"])
        except (KeyError, TypeError, ValueError) as exc:
            raise _unusable("VERCEL_OIDC_TOKEN lacks a claim (exp, owner_id, project_id)") from exc
        if expires_at <= time.time():
            raise _unusable(
                "VERCEL_OIDC_TOKEN has expired: `vercel env pull` writes a new one, or set VERCEL_TOKEN, VERCEL_TEAM_ID and VERCEL_PROJECT_ID"
            )
        return SandboxCredentials(token=token, team_id=team_id, project_id=project_id)


def _claims(token: str) -> dict[str, Any]:
    """The payload of a JSON Web Token, unverified: the API verifies it. Source: RFC 7519."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (IndexError, binascii.Error, ValueError) as exc:
        raise _unusable("VERCEL_OIDC_TOKEN is not a JSON Web Token") from exc
    return claims if isinstance(claims, dict) else {}


def _unusable(reason: str) -> SandboxError:
    return SandboxError(SandboxErrorCode.UNAVAILABLE, reason)

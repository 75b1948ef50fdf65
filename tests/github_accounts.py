"""Accounts at a GitHub of our own: the device flow, tokens that expire, pairs of which each refresh kills the one before.

Source: GitHub, "Generating a user access token for a GitHub App" and "Refreshing user access tokens", read 2026-11: the token endpoint answers 200 whatever comes of it.
"""

import secrets
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

CLIENT_ID = "Iv23liOrionTests"
_DEVICE = "urn:ietf:params:oauth:grant-type:device_code"


@dataclass
class Code:
    user_code: str
    account: dict[str, Any] | None = None
    error: str = ""


@dataclass
class GitHubAccounts:
    """What people do at GitHub in a browser, and what its server answers."""

    lifetime_s: float | None = 28_800
    """None = the app has expiry switched off."""
    interval_s: float = 5
    codes: dict[str, Code] = field(default_factory=dict)
    """By device codes."""
    tokens: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Accounts by the tokens that are good."""
    refreshes: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    """Token and account, by the refresh tokens that are good."""
    slow_downs: int = 0
    """So many questions are answered so."""
    is_down: bool = False

    def authorize(self, user_code: str, *, login: str, number: int) -> None:
        """A person types a code in, and says yes."""
        self._code(user_code).account = {"id": number, "login": login, "name": login.title()}

    def refuse(self, user_code: str, error: str = "access_denied") -> None:
        self._code(user_code).error = error

    def revoke(self, login: str) -> None:
        """A person takes the app's access back."""
        self.tokens = {key: one for key, one in self.tokens.items() if one["login"] != login}
        self.refreshes = {
            key: pair for key, pair in self.refreshes.items() if pair[1]["login"] != login
        }

    def add_to(self, app: FastAPI, *, api: str = "") -> None:
        app.post("/login/device/code")(self._begin)
        app.post("/login/oauth/access_token")(self._token)
        app.get(f"{api}/user")(self._user)

    def app(self) -> FastAPI:
        app = FastAPI()
        self.add_to(app)
        return app

    def _code(self, user_code: str) -> Code:
        return next(code for code in self.codes.values() if code.user_code == user_code)

    async def _begin(self, request: Request) -> Response:
        form = await read_form(request)
        if self.is_down:
            return Response("<html>unicorn</html>", status_code=503)
        if form.get("client_id") != CLIENT_ID:
            return JSONResponse({"error": "incorrect_client_credentials"})
        device_code = secrets.token_hex(20)
        code = Code(user_code=f"{secrets.token_hex(2)}-{secrets.token_hex(2)}".upper())
        self.codes[device_code] = code
        return JSONResponse(
            {
                "device_code": device_code,
                "user_code": code.user_code,
                "verification_uri": str(request.base_url) + "login/device",
                "expires_in": 900,
                "interval": self.interval_s,
            }
        )

    async def _token(self, request: Request) -> Response:
        form = await read_form(request)
        if self.is_down:
            return Response("<html>unicorn</html>", status_code=503)
        if form.get("grant_type") == _DEVICE:
            return JSONResponse(self._of_device(form.get("device_code", "")))
        if form.get("client_id") != CLIENT_ID:
            return JSONResponse({"error": "incorrect_client_credentials"})
        token, account = self.refreshes.pop(form.get("refresh_token", ""), ("", None))
        if account is None:
            return JSONResponse({"error": "bad_refresh_token"})
        self.tokens.pop(token, None)
        return JSONResponse(self._pair(account))

    def _of_device(self, device_code: str) -> dict[str, Any]:
        code = self.codes.get(device_code)
        if code is None:
            return {"error": "incorrect_device_code"}
        if self.slow_downs:
            self.slow_downs -= 1
            return {"error": "slow_down", "interval": self.interval_s + 5}
        if code.error:
            return {"error": code.error}
        if code.account is None:
            return {"error": "authorization_pending"}
        del self.codes[device_code]
        return self._pair(code.account)

    def _pair(self, account: dict[str, Any]) -> dict[str, Any]:
        token = f"ghu_{secrets.token_hex(18)}"
        self.tokens[token] = account
        if self.lifetime_s is None:
            return {"access_token": token, "token_type": "bearer", "scope": ""}
        refresh = f"ghr_{secrets.token_hex(38)}"
        self.refreshes[refresh] = token, account
        return {
            "access_token": token,
            "expires_in": self.lifetime_s,
            "refresh_token": refresh,
            "refresh_token_expires_in": 15_811_200,
            "token_type": "bearer",
            "scope": "",
        }

    async def _user(self, request: Request) -> Response:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self.tokens:
            return JSONResponse({"message": "Bad credentials"}, status_code=401)
        return JSONResponse(self.tokens[token])


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form, one of each name."""
    return {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}

"""A server of repositories for tests: git's own `http-backend` behind ASGI, and the routes of GitHub's API that Orion uses."""

import asyncio
import base64
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from tests.github_accounts import GitHubAccounts
from tests.github_app import GitHubApp
from tests.github_pulls import API, PullPages

TOKEN = "ghp_canaryOfTheOperator4711aaaabbbbcccc00"  # noqa: S105 - made up
DEPLOYMENT = "orion"
"""As whom it acts with its own token."""
APP = "orion[bot]"
"""As whom it acts as a GitHub App."""
NOWHERE = "1" * 40
"""A commit that there is not."""
_ENV = {
    "PATH": os.defpath,
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    **{f"GIT_{role}_NAME": "Ann" for role in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{role}_EMAIL": "ann@example.com" for role in ("AUTHOR", "COMMITTER")},
}


def settings_for(url: str) -> dict[str, str]:
    """Returns the settings of an Orion that works with a `GitServer` at this address, by the deployment's own token."""
    return {
        "GITHUB_TOKEN": TOKEN,
        "ORION_GITHUB_URL": url,
        "ORION_GITHUB_API_URL": f"{url}{API}",
    }


def git(directory: Path, *arguments: str) -> str:
    """Run by the test itself; its stdout."""
    done = subprocess.run(
        ["/usr/bin/git", "-C", str(directory), *arguments],
        env=_ENV,
        check=True,
        capture_output=True,
    )
    return done.stdout.decode().strip()


def _password(request: Request) -> str:
    kind, _, said = request.headers.get("authorization", "").partition(" ")
    name, _, password = base64.b64decode(said).decode().partition(":")
    return password if (kind, name) == ("Basic", "x-access-token") else ""


@dataclass(kw_only=True)
class GitServer:
    """Private: only who has the token gets in. `/acme/api.git` is the repository, `/api/v3` the REST API."""

    root: Path
    requests: list[str] = field(default_factory=list)
    pulls: list[dict[str, Any]] = field(default_factory=list)
    is_api_sick: bool = False
    api_delay_s: float = 0.0
    accounts: GitHubAccounts | None = None
    """None = nobody has one; else whoever is in `readers` gets in as well."""
    github_app: GitHubApp | None = None
    """Whose tokens get in where they are for; None = there is none."""
    readers: dict[str, set[str]] = field(default_factory=dict)
    """Logins, by `owner/name`."""
    pushes: list[str] = field(default_factory=list)
    """Who has pushed."""
    pages: PullPages = field(init=False)
    """What becomes of the pull requests."""

    def __post_init__(self) -> None:
        self.pages = PullPages(root=self.root, pulls=self.pulls, who=self._who)

    def bare(self, name: str) -> Path:
        """An empty repository, which may be pushed to."""
        path = self.root / f"{name}.git"
        path.mkdir(parents=True)
        git(path, "init", "-q", "--bare", "-b", "main")
        git(path, "config", "http.receivepack", "true")
        return path

    def filled(
        self, name: str, files: dict[str, str], *, submodule: str = "", commit: str = NOWHERE
    ) -> Path:
        """One with these files on its branch `main`, and perhaps a submodule at a commit."""
        path, work = self.bare(name), self.root / f"work-{name.replace('/', '-')}"
        work.mkdir()
        git(work, "init", "-q", "-b", "main")
        for file, text in files.items():
            (work / file).parent.mkdir(parents=True, exist_ok=True)
            (work / file).write_text(text)
        git(work, "add", "-A", "--", ".")
        if submodule:
            git(work, "update-index", "--add", "--cacheinfo", f"160000,{commit},{submodule}")
        git(work, "commit", "-q", "-m", "first")
        git(work, "push", "-q", str(path), "main")
        return path

    def app(self) -> FastAPI:
        app = FastAPI()
        if self.accounts is not None:
            self.accounts.add_to(app, api=API)
        if self.github_app is not None:
            self.github_app.add_to(app, api=API)
        app.add_api_route(
            f"{API}/repos/{{owner}}/{{name}}/pulls", self._pulls, methods=["GET", "POST"]
        )
        self.pages.add_to(app)
        app.add_api_route("/{path:path}", self._git, methods=["GET", "POST"])
        return app

    async def _pulls(self, owner: str, name: str, request: Request) -> Response:
        who = self._who(f"{owner}/{name}", request.headers["authorization"].removeprefix("Bearer "))
        assert who
        await asyncio.sleep(self.api_delay_s)
        if self.is_api_sick:
            return JSONResponse({"message": "no healthy upstream"}, status_code=503)
        if request.method == "GET":
            head = request.query_params["head"].removeprefix(f"{owner}:")
            return JSONResponse([pull for pull in self.pulls if pull["head"] == head])
        pull = await request.json()
        assert set(pull) == {"title", "body", "head", "base"}
        if any(pull["head"] == one["head"] for one in self.pulls):
            errors = [{"message": "A pull request already exists for acme:it."}]
            return JSONResponse({"message": "Validation Failed", "errors": errors}, status_code=422)
        link = f"https://github.test/{owner}/{name}/pull/{len(self.pulls) + 1}"
        self.pulls.append({**pull, "html_url": link, "user": {"login": who}})
        return JSONResponse(self.pulls[-1], status_code=201)

    def _who(self, name: str, token: str) -> str | None:
        """Returns whose token it is; empty = nobody's, None = of somebody who may not read the repository."""
        if token == TOKEN:
            return DEPLOYMENT
        if self.github_app is not None and token in self.github_app.tokens:
            return APP if self.github_app.tokens[token] == name else None
        account = self.accounts.tokens.get(token) if self.accounts else None
        if account is None:
            return ""
        return account["login"] if account["login"] in self.readers.get(name, ()) else None

    async def _git(self, path: str, request: Request) -> Response:
        self.requests.append(f"{request.method} /{path}")
        who = self._who(path.partition(".git")[0], _password(request))
        if who is None:  # Source: GitHub: what one may not read is not there
            return Response(status_code=404)
        if not who:
            headers = {"www-authenticate": 'Basic realm="GitHub"'}
            return Response(status_code=401, headers=headers)
        body = await request.body()
        if request.method == "POST" and path.endswith("/git-receive-pack"):
            self.pushes.append(who)
        env = {
            **_ENV,
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REMOTE_USER": who,
            "REQUEST_METHOD": request.method,
            "PATH_INFO": f"/{path}",
            "QUERY_STRING": request.url.query,
            "CONTENT_TYPE": request.headers.get("content-type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": request.headers.get("content-encoding", ""),
            "GIT_PROTOCOL": request.headers.get("git-protocol", ""),
        }
        done = await asyncio.to_thread(
            subprocess.run,
            ["/usr/bin/git", "http-backend"],
            env=env,
            input=body,
            capture_output=True,
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().splitlines())
        status = int(headers.pop("Status", "200").split()[0])
        return Response(content, status_code=status, headers=headers)

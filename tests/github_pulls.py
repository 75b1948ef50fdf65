"""What GitHub's API says of pull requests, at a server of our own: heads and conflicts are those of real repositories, ETags are a token's own.

Source: GitHub REST API, "Best practices for using the REST API" (conditional requests, limits), "Pull requests", "Check runs", read 2026-11.
"""

import hashlib
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

API = "/api/v3"


@dataclass(kw_only=True)
class PullPages:
    """The pages of the pull requests in `pulls`, which are as they were asked for, with a number each."""

    root: Path
    """Of the bare repositories: `owner/name.git`."""
    pulls: list[dict[str, Any]]
    who: Callable[[str, str], str | None]
    """Whose token it is, by `owner/name` and token; see `GitServer`."""
    states: dict[int, str] = field(default_factory=dict)
    """`merged`, `closed` or `gone`, by numbers; others are open."""
    checks: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Check runs, by commits."""
    statuses: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    annotations: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    reviews: list[dict[str, Any]] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)
    comments: list[dict[str, Any]] = field(default_factory=list)
    answered: list[tuple[str, int]] = field(default_factory=list)
    """Paths and statuses of all requests."""
    refuses: dict[str, int] = field(default_factory=dict)
    """Statuses of what is asked for, by how its path ends."""
    limit: dict[str, str] = field(default_factory=dict)
    """Headers of the refusal that everything gets, where there are any."""
    page_size: int = 100
    changes: int = 0
    """So many times people have written or pushed; GitHub's `updated_at`."""

    def add_to(self, app: FastAPI) -> None:
        repo = f"{API}/repos/{{owner}}/{{name}}"
        for path in ("/pulls/{rest:path}", "/commits/{rest:path}", "/issues/{rest:path}"):
            app.add_api_route(repo + path, self._answer, methods=["GET"])
        app.add_api_route(f"{repo}/check-runs/{{rest:path}}", self._answer, methods=["GET"])

    def app(self) -> FastAPI:
        app = FastAPI()
        self.add_to(app)
        return app

    def head(self, number: int = 1) -> str:
        """The commit of a pull request."""
        return self._git(self._pull(number), "rev-parse", self._pull(number)["head"])

    def check(self, name: str, conclusion: str = "", *, number: int = 1, **more: Any) -> None:
        """A check of its commit, which goes on where there is no conclusion."""
        runs = self.checks.setdefault(self.head(number), [])
        runs[:] = [run for run in runs if run["name"] != name]
        made = {
            "id": 700 + len(self.annotations),
            "name": name,
            "status": "completed" if conclusion else "in_progress",
            "conclusion": conclusion or None,
            "html_url": f"https://github.test/acme/api/runs/{name}",
            "output": {"title": None, "summary": None, "annotations_count": 0},
        }
        runs.append(made | more)

    def comment(self, body: str, *, by: str = "bea", number: int = 1) -> None:
        made = len(self.comments) + 1
        link = f"https://github.test/acme/api/pull/{number}#issuecomment-{made}"
        said = {"id": made, "body": body, "user": {"login": by}, "html_url": link}
        self.comments.append(said)
        self.changes += 1

    def review(self, state: str, body: str = "", *, by: str = "bea", **lines: str) -> None:
        """`lines`: what is said of the first lines of files."""
        made = len(self.reviews) + 1
        link = f"https://github.test/acme/api/pull/1#pullrequestreview-{made}"
        self.reviews.append(
            {"id": made, "state": state, "body": body, "user": {"login": by}, "html_url": link}
        )
        for path, said in lines.items():
            self.lines.append(
                {"path": path, "line": 1, "body": said, "pull_request_review_id": made}
            )
        self.changes += 1

    def _pull(self, number: int) -> dict[str, Any]:
        return self.pulls[number - 1]

    def _git(self, pull: dict[str, Any], *arguments: str) -> str:
        name = pull["html_url"].split("/pull/")[0].split("/", 3)[3]
        done = subprocess.run(
            ["/usr/bin/git", "-C", str(self.root / f"{name}.git"), *arguments],
            check=True,
            capture_output=True,
        )
        return done.stdout.decode().strip()

    async def _answer(self, owner: str, name: str, rest: str, request: Request) -> Response:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        path = request.url.path.removeprefix(f"{API}/repos/{owner}/{name}")
        answer = self._refusal(f"{owner}/{name}", token, path)
        if answer is None:
            answer = self._page(path, rest, request)
            seen = hashlib.sha256(token.encode() + bytes(answer.body)).hexdigest()
            answer.headers["etag"] = f'W/"{seen}"'
            if request.headers.get("if-none-match") == answer.headers["etag"]:
                answer = Response(status_code=304)
        self.answered.append((path, answer.status_code))
        return answer

    def _refusal(self, name: str, token: str, path: str) -> Response | None:
        if self.limit:
            said = {"message": "You have exceeded a secondary rate limit"}
            return JSONResponse(said, status_code=403, headers=self.limit)
        who = self.who(name, token)
        if who == "":
            return JSONResponse({"message": "Bad credentials"}, status_code=401)
        if who is None:
            return JSONResponse({"message": "Not Found"}, status_code=404)
        for end, status in self.refuses.items():
            if path.endswith(end):
                return JSONResponse({"message": "no"}, status_code=status)
        return None

    def _page(self, path: str, rest: str, request: Request) -> Response:
        kind, one, last = path.split("/")[1], rest.partition("/")[0], rest.rpartition("/")[2]
        lists = {
            ("commits", "check-runs"): (self.checks.get(one, []), "check_runs"),
            ("commits", "status"): (self.statuses.get(one, []), "statuses"),
            ("pulls", "reviews"): (self.reviews, ""),
            ("pulls", "comments"): (self.lines, ""),
            ("issues", "comments"): (self.comments, ""),
        }
        if (kind, last) in lists:
            return self._list(*lists[kind, last], request)
        if kind == "check-runs":
            return self._list(self.annotations.get(int(one), []), "", request)
        return self._whole(int(one))

    def _whole(self, number: int) -> Response:
        state = self.states.get(number, "open")
        if state == "gone" or number > len(self.pulls):
            return JSONResponse({"message": "Not Found"}, status_code=404)
        pull = self._pull(number)
        head = self.head(number)
        return JSONResponse(
            {
                "number": number,
                "html_url": pull["html_url"],
                "state": "open" if state == "open" else "closed",
                "merged": state == "merged",
                "draft": False,
                "head": {"ref": pull["head"], "sha": head},
                "base": {"ref": pull["base"]},
                "mergeable_state": self._mergeable(pull),
                "updated_at": datetime.fromtimestamp(
                    self.changes + int(head[:7], 16), UTC
                ).isoformat(),
            }
        )

    def _mergeable(self, pull: dict[str, Any]) -> str:
        try:
            self._git(pull, "merge-tree", "--write-tree", pull["base"], pull["head"])
        except subprocess.CalledProcessError as exc:
            if exc.returncode != 1:
                raise
            return "dirty"
        return "clean"

    def _list(self, found: Sequence[Any], key: str, request: Request) -> JSONResponse:
        page, size = int(request.query_params.get("page", 1)), self.page_size
        shown = list(found[(page - 1) * size : page * size])
        answer = JSONResponse({"total_count": len(found), key: shown} if key else shown)
        if len(found) > page * size:
            url = request.url.include_query_params(page=page + 1)
            answer.headers["link"] = f'<{url}>; rel="next"'
        return answer

"""What GitHub's refusals become."""

from collections.abc import Mapping

import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from app.brokerage.git_remotes import GitRemotes
from app.brokerage.github import GitHub
from app.runs.broker_ports import NothingToProposeError, Proposal
from app.web.hosting import serve


async def _open(answer: Mapping[str, object]) -> str:
    app = FastAPI()
    app.add_api_route(
        "/repos/acme/api/pulls", lambda: JSONResponse(answer, status_code=422), methods=["POST"]
    )
    async with serve(app) as url:
        remotes = GitRemotes(github_url="https://github.test", token="ghp_x")
        proposal = Proposal(
            url="https://github.test/acme/api.git",
            branch="orion/x",
            base="main",
            title="t",
            body="",
        )
        return await GitHub(remotes=remotes, api_url=url).open_pull_request(proposal)


@pytest.mark.parametrize(
    ("errors", "reason"),
    [
        (
            [{"message": "Base is locked"}, {"message": "x" * 500}],
            "Validation Failed: Base is locked: x",
        ),
        (
            [{"resource": "PullRequest", "field": "base", "code": "invalid"}],
            "Validation Failed: base invalid",
        ),
        (["must be one of"], "Validation Failed: must be one of"),
        (None, "Validation Failed"),
        (7, "Validation Failed"),
    ],
)
async def test_the_reasons_are_told(errors: object, reason: str) -> None:
    """All of them, cut at some length."""
    with pytest.raises(ConnectionError) as caught:
        await _open({"message": "Validation Failed", "errors": errors})
    told = str(caught.value)
    assert f"(HTTP 422): {reason}" in told
    assert len(told) < 300


async def test_no_commits_between() -> None:
    """Is nothing that went wrong."""
    errors = [{"message": "No commits between main and orion/x"}]
    with pytest.raises(NothingToProposeError):
        await _open({"message": "Validation Failed", "errors": errors})

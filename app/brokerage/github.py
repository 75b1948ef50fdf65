"""Opens pull requests on GitHub, from outside the sandbox."""

from typing import Any
from urllib.parse import urlsplit

import httpx

from app.accounts.records import Owner
from app.brokerage.credentials import CredentialError, GitCredentials, basic
from app.brokerage.github_api import TIMEOUT_S, api_headers, describe_failure
from app.brokerage.http import trusted
from app.log import get_logger
from app.runs.broker import slug_of
from app.runs.repository.checkout import Author, NothingToProposeError, Proposal

_CREATED, _UNPROCESSABLE = 201, 422
_MAX_REASON_CHARS = 200

_log = get_logger(__name__)


class GitHub:
    """Implements CodeHost."""

    def __init__(
        self, *, credentials: GitCredentials, api_url: str, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._credentials = credentials
        self._timeout_s = timeout_s
        self._api_url = api_url.rstrip("/")

    async def open_pull_request(self, proposal: Proposal) -> str:
        if not self._credentials.remotes.is_github(proposal.url):
            return ""
        name = slug_of(proposal.url).partition("/")[2]
        token = await self._credentials.token_for(name, proposal.acting_for)
        pulls = f"{self._api_url}/repos/{name}/pulls"
        try:
            async with httpx.AsyncClient(
                verify=trusted(), headers=api_headers(token), timeout=self._timeout_s
            ) as http:
                link = await _create(http, pulls, proposal) or await _find(
                    http, pulls, owner=name.partition("/")[0], branch=proposal.branch
                )
        except (httpx.HTTPError, ValueError) as exc:
            host = urlsplit(self._api_url).netloc.rpartition("@")[2]
            raise ConnectionError(f"the server at {host} {describe_failure(exc)}") from exc
        _log.info("pull_request.opened", repo=name, branch=proposal.branch)
        return link

    async def admit(self, url: str, owner: Owner) -> Author | None:
        if not self._credentials.remotes.is_github(url):
            return None
        account = await self._credentials.account_of(owner)
        host = urlsplit(url).hostname or ""
        refs = f"{url.rstrip('/')}/info/refs?service=git-upload-pack"
        headers = basic(account.tokens.access)
        try:
            async with (
                httpx.AsyncClient(
                    verify=trusted(), headers=headers, timeout=self._timeout_s
                ) as http,
                http.stream("GET", refs) as answer,
            ):
                status = answer.status_code
        except httpx.HTTPError as exc:
            raise ConnectionError(f"the server at {host} {describe_failure(exc)}") from exc
        match status:
            case 200:
                # Source: GitHub, "Setting your commit email address", noreply addresses, read 2026-11.
                email = f"{account.id}+{account.login}@users.noreply.{host}"
                return Author(name=account.login, email=email)
            case 401:
                raise await self._credentials.refused(owner, account)
            case 403 | 404:
                raise CredentialError(
                    f"your GitHub account {account.login} may not read {slug_of(url)}, or I am not installed there"
                )
            case _:
                raise ConnectionError(f"the server at {host} gave HTTP {status}")


async def _create(http: httpx.AsyncClient, pulls: str, proposal: Proposal) -> str:
    """Creates a pull request and returns its link; empty when there seems to be one already. Source: GitHub REST API, "Create a pull request"."""
    body = {
        "title": proposal.title,
        "body": proposal.body,
        "head": proposal.branch,
        "base": proposal.base,
    }
    answer = await http.post(pulls, json=body)
    if answer.status_code == _CREATED:
        return _read_link(answer.json())
    if answer.status_code == _UNPROCESSABLE and "already exists" in answer.text:
        return ""
    if answer.status_code == _UNPROCESSABLE and "No commits between" in answer.text:
        raise NothingToProposeError
    raise ConnectionError(f"GitHub refused it (HTTP {answer.status_code}): {_read_reason(answer)}")


async def _find(http: httpx.AsyncClient, pulls: str, *, owner: str, branch: str) -> str:
    """Returns the link of the open pull request of a branch. Source: GitHub REST API, "List pull requests"."""
    query = {"head": f"{owner}:{branch}", "state": "open"}
    answer = await http.get(pulls, params=query)
    found = answer.json() if answer.is_success else []
    if not isinstance(found, list) or not found:
        raise ConnectionError(f"GitHub has one, but does not show it (HTTP {answer.status_code})")
    return _read_link(found[0])


def _read_link(pull: Any) -> str:  # noqa: ANN401 - GitHub's JSON
    """Returns the link of a pull request. Raises: ValueError: it has none."""
    link = pull.get("html_url") if isinstance(pull, dict) else None
    if not isinstance(link, str) or urlsplit(link).scheme not in ("http", "https"):
        raise ValueError("a pull request without a link")
    return link


def _read_reason(answer: httpx.Response) -> str:
    try:
        said = answer.json()
    except ValueError:
        return "no reason given"
    if not isinstance(said, dict):
        return "no reason given"
    errors = said.get("errors")
    parts = [
        said.get("message"),
        *(map(_describe_error, errors) if isinstance(errors, list) else ()),
    ]
    return ": ".join(str(part) for part in parts if part)[:_MAX_REASON_CHARS] or "no reason given"


def _describe_error(error: Any) -> str:  # noqa: ANN401 - GitHub's JSON
    """Describes one error. Source: GitHub REST API, "Validation Failed": some errors have a message, others a field and a code alone."""
    if not isinstance(error, dict):
        return str(error)
    return str(error.get("message") or f"{error.get('field', '')} {error.get('code', '')}".strip())

"""What every request to GitHub's REST API has, and how its failures are told."""

from typing import Final

import httpx

TIMEOUT_S: Final = 20.0
API_VERSION: Final = "2022-11-28"
"""Source: GitHub REST API, "API Versions", read 2026-11."""


def api_headers(token: str) -> dict[str, str]:
    """Returns what a request to GitHub's REST API carries."""
    return {
        "authorization": f"Bearer {token}",
        "accept": "application/vnd.github+json",
        "x-github-api-version": API_VERSION,
    }


def describe_failure(failure: Exception) -> str:
    """Returns what went wrong with a request to a server, as the rest of a sentence about it."""
    match failure:
        case httpx.TimeoutException():
            return "did not answer in time"
        case httpx.TransportError():
            return "could not be reached"
        case _:
            return "gave no answer of GitHub's API"

"""The HTTP clients by which the broker asks models, tools and repositories."""

from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx

KEPT_OPEN = 20
"""Connections that wait for the next request; httpx's own default."""


def create_client() -> httpx.AsyncClient:
    """For requests of all runs; the caller closes it. How many connections there are is bounded by what runs may have in flight.

    No cookie is kept: what a server gives one run would be sent for the next.
    """
    return httpx.AsyncClient(
        cookies=CookieJar(policy=DefaultCookiePolicy(allowed_domains=())),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=KEPT_OPEN),
    )

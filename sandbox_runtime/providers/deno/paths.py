"""Where things are inside a sandbox, and what every command there finds in its environment. Pure."""

from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from sandbox_runtime.providers.deno.connecting import Secret
from sandbox_runtime.sandbox_user import user_env
from sandbox_runtime.types import BrokeredNetwork, Network, OpenNetwork, SandboxPaths

SESSION, COPY = "/session", "/copy"
"""Where volumes are mounted. One volume has one place, so that all that belongs to a session is below it."""
WORK, HOME, RUN, ENVIRONMENT = f"{SESSION}/work", f"{SESSION}/home", f"{SESSION}/run", "/env"
RECORD = f"{SESSION}/sandbox.json"
BROKER_KEY = "ORION_BROKER_KEY"
_NO_BROKER = "http://127.0.0.1:9"
"""Where nothing answers (the discard service)."""

ROOT_PYTHON = ("sudo", "-n", "python3", "-I", "-S", "-c")
"""Deno's images have the user `app`, who may become root. The agent is another user, who may not."""


def sandbox_paths(broker: str) -> SandboxPaths:
    """As processes inside see them; `broker` is a URL, or empty."""
    return SandboxPaths(
        work=WORK, home=HOME, run=RUN, environment=ENVIRONMENT, broker=broker or _NO_BROKER
    )


def sandbox_env(env: Mapping[str, str], *, writable: bool) -> dict[str, str]:
    """The whole environment of a command, but for its own variables."""
    own = user_env(HOME, scratch=RUN if writable else None)
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", **own, **env}


def allowed_hosts(network: Network) -> list[str] | None:
    """For `SandboxConfig.allow_net`.

    Raises:
        ValueError: the endpoint is no URL.
    """
    match network:
        case OpenNetwork():
            return None
        case BrokeredNetwork():
            url = _split(network)
            port = url.port or (443 if url.scheme == "https" else 80)
            return [f"{_bracketed(url.hostname or '')}:{port}"]
        case _:
            return []


def wire_secrets(network: Network) -> dict[str, Secret]:
    """For `SandboxConfig.secrets`: requests carry the text in `BROKER_KEY` where the headers have the secret.

    Raises:
        ValueError: the headers have not one secret in common, as `x-api-key: S` and `authorization: Bearer S` have.
    """
    if not isinstance(network, BrokeredNetwork) or not network.headers:
        return {}
    value = min(network.headers.values(), key=len)
    if not value or not all(value in other for other in network.headers.values()):
        raise ValueError("a Deno sandbox can have headers of one secret added, not of several")
    return {BROKER_KEY: Secret(host=_split(network).hostname or "", value=value)}


def _split(network: BrokeredNetwork) -> SplitResult:
    url = urlsplit(network.endpoint)
    if url.scheme not in {"http", "https"} or not url.hostname:
        raise ValueError(f"not a URL that a Deno sandbox could reach: {network.endpoint!r}")
    return url


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host

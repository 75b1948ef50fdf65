"""What an operator chooses about Vercel sandboxes."""

import re
from dataclasses import dataclass, field

API_URL = "https://vercel.com/api"
"""Source: vercel-sandbox 0.10.0, options.py, DEFAULT_SANDBOX_API_BASE_URL."""
MIN_LIFETIME_S = 60.0
MAX_LIFETIME_S = 24 * 3600.0
"""Of the Pro and Enterprise plans; 45 minutes on Hobby. Source: Vercel documentation, Sandbox pricing, read 2026-11."""

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_NAME_CHARS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class VercelSettings:
    """Credentials are either a token with a team and a project, or an OIDC token.

    Raises:
        ValueError: neither is whole, or `name`, `api_url`, `vcpus` or `lifetime_s` cannot be used.
    """

    token: str | None = field(default=None, repr=False)
    team_id: str | None = None
    project_id: str | None = None
    oidc_token: str | None = field(default=None, repr=False)
    """Holds team and project as claims; used only when the three above are not all there."""
    api_url: str = API_URL
    name: str = "orion"
    """Namespace in the project: lower-case letters and digits, `-` between them, at most 24. Each service needs its own:
    listing, sweeping and snapshots see only what carries it."""
    region: str = "iad1"
    vcpus: int = 4
    """Of one sandbox, with 2 GiB of memory each."""
    image: str = "vercel/sandbox/universal:latest"
    """It needs `python3` (3.9 or later), `sh`, the coreutils, `tar`, and sudo without a password for its user."""
    lifetime_s: float = 600.0
    """A sandbox ends itself then, whatever became of the service, unless a spec or `extend` says otherwise."""
    create_timeout_s: float = 90.0
    """How long a sandbox may take to run."""
    snapshot_keep_s: float = 30 * 24 * 3600.0
    """A snapshot that nothing uses is deleted then, by the provider; 0 = never."""
    beat_s: float = 10.0
    """How often a silent command shows that it lives: connections that carry nothing are cut after some minutes, and
    some carry nothing any more without being cut. Nine missed ones, and the command is lost."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name) > _NAME_CHARS:
            raise ValueError(f"not a name for Vercel sandboxes: {self.name!r}")
        if not self.api_url.startswith(("http://", "https://")):
            raise ValueError(f"not an address of Vercel's API: {self.api_url!r}")
        if not all((self.token, self.team_id, self.project_id)) and not self.oidc_token:
            raise ValueError(
                "no Vercel credentials: set VERCEL_TOKEN, VERCEL_TEAM_ID and VERCEL_PROJECT_ID, or VERCEL_OIDC_TOKEN"
            )
        if self.vcpus < 1:
            raise ValueError(f"a sandbox has at least one processor, not {self.vcpus}")
        if not MIN_LIFETIME_S <= self.lifetime_s <= MAX_LIFETIME_S:
            raise ValueError(
                f"a sandbox lives {MIN_LIFETIME_S:g} to {MAX_LIFETIME_S:g} s, not {self.lifetime_s:g}"
            )

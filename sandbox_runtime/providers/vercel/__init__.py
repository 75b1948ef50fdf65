"""Sandboxes as microVMs of Vercel Sandbox: what is known of them without the client."""

import re
from dataclasses import dataclass, field

from sandbox_runtime.provider import ProviderSetting, ProviderSpec

_OTHER_REGIONS = (
    "arn1 bom1 cdg1 cle1 cpt1 dub1 dxb1 fra1 gru1 hkg1 hnd1 icn1 kix1 lhr1 pdx1 sfo1 sin1 syd1 yul1"
)

SPEC = ProviderSpec(
    name="vercel",
    provider=f"{__name__}.provider:VercelProvider",
    create=f"{__name__}.provider:create",
    fix="set its credentials right, as `orion setup vercel` does, or choose another ORION_SANDBOX",
    settings=(
        ProviderSetting(
            name="VERCEL_TOKEN",
            description="Access token for vercel, with the two ids below.",
            is_secret=True,
            is_token=True,
            question="Access token (vercel.com, Account Settings, Tokens)",
        ),
        ProviderSetting(
            name="VERCEL_TEAM_ID",
            description="Id of the team (team_…), with VERCEL_TOKEN.",
            is_token=True,
            question="Team id (team_…)",
        ),
        ProviderSetting(
            name="VERCEL_PROJECT_ID",
            description="Id of the project (prj_…), with VERCEL_TOKEN.",
            is_token=True,
            question="Project id (prj_…)",
        ),
        ProviderSetting(
            name="VERCEL_OIDC_TOKEN",
            description="Instead of VERCEL_TOKEN and the two ids: what `vercel env pull` writes, good for 12 hours.",
            is_secret=True,
        ),
        ProviderSetting(
            name="ORION_VERCEL_API_URL",
            description="Any server that speaks Vercel's API, for tests.",
            default="https://vercel.com/api",
        ),
    ),
    credentials=(("VERCEL_TOKEN", "VERCEL_TEAM_ID", "VERCEL_PROJECT_ID"), ("VERCEL_OIDC_TOKEN",)),
    auto="credentials",
    tells_ports=False,
    is_cloud=True,
    # Source: documentation of Vercel, Sandbox Regions and Sandbox pricing (its largest plan), read 2026-11.
    regions=("iad1", *_OTHER_REGIONS.split()),
    max_vcpus=32,
    has_whole_vcpus=True,
    sdk_environment={"VERCEL_TELEMETRY_DISABLED": "1"},
)


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
    owner: str = ""
    """The name of whoever makes sandboxes with it, as `SandboxProvider.sweep` is told who lives; empty = this process."""

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

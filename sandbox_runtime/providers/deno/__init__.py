"""Sandboxes as microVMs of Deno Deploy: what is known of them without the client."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from sandbox_runtime.provider import ProviderSetting, ProviderSpec

Region = Literal["ord", "ams"]
REGIONS: tuple[Region, ...] = get_args(Region)
"""Source: Deno documentation, "Volumes & Snapshots", read 2026-11."""

MAX_LIFETIME_S = 30 * 60.0
"""Of a sandbox, and of one extension. Source: Deno documentation, "Timeouts", read 2026-11."""

SPEC = ProviderSpec(
    name="deno",
    provider=f"{__name__}.provider:DenoProvider",
    create=f"{__name__}.provider:create",
    fix="set its token right, as `orion setup deno` does, or choose another ORION_SANDBOX",
    settings=(
        ProviderSetting(
            name="DENO_DEPLOY_TOKEN",
            description="Access token of an organisation, for deno.",
            is_secret=True,
            is_token=True,
            question="Access token of the organisation (console.deno.com, Settings)",
        ),
        ProviderSetting(
            name="ORION_DENO_API_URL",
            description="Any server that speaks Deno's API, for tests; default: its own servers.",
        ),
    ),
    credentials=(("DENO_DEPLOY_TOKEN",),),
    is_cloud=True,
    regions=REGIONS,
    max_lifetime_s=MAX_LIFETIME_S,
)


MIN_MEMORY_MIB, MAX_MEMORY_MIB = 768, 4096
"""Source: Deno documentation, "Deno Sandbox", read 2026-11."""

_NAME = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")
_MAX_NAME = 32
_URL = re.compile(r"https?://[^/]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class DenoSettings:
    """Raises: ValueError: a value is not of its form; the message names it."""

    token: str = field(repr=False)
    """Of the organisation, as DENO_DEPLOY_TOKEN says it."""
    region: str = "ord"
    """`ams` or `ord`: where sandboxes, volumes and snapshots are. None of them can be used from the other one, so that a
    changed region starts without environments, and without the workspaces of earlier sessions; `DenoProvider.probe` counts those."""
    name: str = "orion"
    """Namespace in the organisation: lower-case letters, digits, and `.`, `_`, `-` between them, at most 32. Each service
    needs its own: listing, sweeping and snapshots see only what carries it."""
    memory_mib: int = 2048
    """Of a sandbox, 768 to 4096; less when a sandbox is limited to less."""
    lifetime_s: float = 29 * 60.0
    """Of a sandbox that asks for none, at most 30 minutes, less by what this machine's clock may be ahead. It ends then, whatever became of the service."""
    api_url: str | None = None
    """Another server for both endpoints, control plane and sandboxes, without a path; None = Deno's own."""
    state_dir: Path | None = None
    """Where the names of snapshots are kept, which Deno has no room for; None = in memory."""
    git_name: str = "Orion"
    git_email: str = "orion@localhost"
    setup: str | None = None
    """A shell script that root runs to make the base environment, instead of the one here. It needs to leave `python3`
    (3.9 or later), `sh`, the coreutils, and a user `agent` (10001:10001) with the home /session/home."""
    silence_s: float = 20.0
    """A connection to a sandbox on which nothing comes for so long, not even the answer to a ping, is lost."""
    retry_wait_s: float = 0.5
    """Before the first repetition of a request that may be repeated; then twice that, and so on."""
    owner: str = ""
    """The name of whoever makes sandboxes with it, as `SandboxProvider.sweep` is told who lives; empty = this process."""

    def __post_init__(self) -> None:
        if not self.token:
            raise ValueError("no token of Deno: set DENO_DEPLOY_TOKEN")
        if self.region not in REGIONS:
            raise ValueError(
                f"not a region of Deno: {self.region!r}; known: {', '.join(sorted(REGIONS))}"
            )
        if not _NAME.fullmatch(self.name) or len(self.name) > _MAX_NAME:
            raise ValueError(f"not a name for Deno sandboxes: {self.name!r}")
        if not MIN_MEMORY_MIB <= self.memory_mib <= MAX_MEMORY_MIB:
            raise ValueError(
                f"memory of a Deno sandbox is {MIN_MEMORY_MIB} to {MAX_MEMORY_MIB} MiB, not {self.memory_mib}"
            )
        if not 0 < self.lifetime_s <= MAX_LIFETIME_S:
            raise ValueError(
                f"a Deno sandbox lives at most {MAX_LIFETIME_S:g} s, not {self.lifetime_s:g}"
            )
        if self.api_url is not None and not _URL.fullmatch(self.api_url):
            raise ValueError(f"not an address of a server, without a path: {self.api_url!r}")

    @property
    def console_url(self) -> str:
        """Returns the control plane's address. Source: deno-sandbox 0.16.0, options.py; so the next one."""
        return self.api_url or "https://console.deno.com"

    @property
    def sandbox_url(self) -> str:
        """Returns the address of the region's own endpoint of sandboxes."""
        return self.api_url or f"https://{self.region}.sandbox-api.deno.net"

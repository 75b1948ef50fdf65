"""The workspaces that are prepared for repositories: made, listed and removed; works beside a running service."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypedDict

from agent_scripts.registry import create_adapter
from app.cli.commands.terminal import Print, timed
from app.compose.brokers import open_visiting_broker
from app.compose.egress import learn_host_sets
from app.compose.factories import (
    create_environment,
    create_preparations,
    sandbox_limits,
    start_logging,
)
from app.compose.models import usable_agents
from app.compose.providers import choose_provider, create_provider, with_namespace
from app.errors import FROM_SANDBOX
from app.redaction import Masker
from app.runs.environment import AgentEnvironment
from app.runs.repository.names import repository_key
from app.runs.repository.preparation import (
    NAME_PREFIX,
    Ground,
    PreparationError,
    Preparations,
)
from app.settings.settings import Settings
from sandbox_runtime.errors import SandboxError
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.types import Capability, SnapshotId, SnapshotRef

MIB = 1024 * 1024


class RepositoryCommandError(Exception):
    """Says why an `orion repositories` command cannot do what it was asked for."""


class PreparedRow(TypedDict):
    repository: str
    """As in orion.toml; empty = it stands there no more, or is prepared otherwise by now."""
    name: str
    provider: str
    agent: str
    """For whose threads it is; empty = of no agent as it is now."""
    state: str
    """`prepared`, `missing` (for the settings' agent alone, as the others' are made when they are asked for) or `old`."""
    id: str
    created_at: str
    size_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Admin:
    settings: Settings
    provider: SandboxProvider
    environments: Mapping[str, AgentEnvironment]
    """Of the agents that may be used, by their names; the settings' one is the first."""
    preparations: Preparations
    masker: Masker

    @property
    def environment(self) -> AgentEnvironment:
        """Returns that of the settings' agent."""
        return self.environments[self.settings.agents.default]

    async def rows(self) -> Sequence[PreparedRow]:
        """Returns those of orion.toml, then what is left of others."""
        saved = {ref.name: ref for ref in await self.provider.list_snapshots() if ref.name}
        found = {agent: await one.find() for agent, one in self.environments.items()}
        rows = []
        for repo in self.settings.toml.setups:
            for agent, environment in found.items():
                name = self.preparations.name_of(repo, environment.id) if environment else ""
                ref = saved.pop(name, None)
                if ref is not None or agent == self.settings.agents.default:
                    state = "prepared" if ref else "missing"
                    rows.append(self._row(repo, agent, state, name=name, ref=ref))
        rest = [ref for name, ref in saved.items() if name.startswith(NAME_PREFIX)]
        return rows + [self._row("", "", "old", name=ref.name or "", ref=ref) for ref in rest]

    def is_named(self, row: PreparedRow, text: str) -> bool:
        """Whether a row is of that repository, in any spelling, or has that name or id."""
        key = partial(repository_key, github_url=self.settings.repositories.github_url)
        is_of_it = bool(row["repository"]) and key(row["repository"]) == key(text)
        return is_of_it or text in (row["name"], row["id"])

    def _row(
        self, repo: str, agent: str, state: str, *, name: str, ref: SnapshotRef | None
    ) -> PreparedRow:
        return PreparedRow(
            repository=repo,
            name=name,
            provider=self.provider.name,
            agent=agent,
            state=state,
            id=ref.id if ref else "",
            created_at=ref.created_at.isoformat() if ref else "",
            size_bytes=ref.size_bytes if ref else None,
        )


async def prepare_repository(settings: Settings, repo: str, *, write: Print) -> bool:
    """Prepares a repository anew; False when it failed, which is written, as each step is.

    Raises:
        RepositoryCommandError: orion.toml has no set-up of it; or it cannot be cloned from here.
    """
    async with _open_admin(settings) as admin:
        settings, tell = admin.settings, timed(write, admin.masker.mask)
        if not admin.preparations.has_setup(repo):
            known = ", ".join(settings.toml.setups) or "none"
            raise RepositoryCommandError(f"orion.toml has no setup of {repo!r}; it has of: {known}")
        is_remote = Capability.REMOTE in admin.provider.capabilities
        if is_remote and not (settings.service.public_url and isinstance(settings.database, str)):
            raise RepositoryCommandError(
                f"sandboxes of {admin.provider.name} clone by a service at ORION_PUBLIC_URL, and by hand with ORION_DATABASE_URL only: a service prepares {repo} at the first question in it"
            )
        try:
            environment = await admin.environment.prepare(tell)
            adapter = create_adapter(settings.agents.default)
            async with open_visiting_broker(settings, is_remote=is_remote) as broker:
                ground = Ground(
                    environment_id=environment.id,
                    broker=broker,
                    limits=sandbox_limits(settings, adapter),
                )
                saved = await admin.preparations.prepare(repo, ground, tell=tell)
            tell(f"prepared: {saved.name}")
        except PreparationError as exc:
            tell(f"FAIL {exc}")
            return False
        except SandboxError as exc:
            tell(f"FAIL {FROM_SANDBOX[exc.code]}: {exc}")
            return False
    return True


async def list_prepared(settings: Settings) -> Sequence[PreparedRow]:
    """Returns what is prepared of the repositories of orion.toml, for each agent that may be used, at the settings' provider; then what is left of others."""
    async with _open_admin(settings) as admin:
        return await admin.rows()


async def remove_prepared(settings: Settings, names: Sequence[str], *, old: bool) -> Sequence[str]:
    """Removes those of these repositories, of all agents, or of these names, or the old ones; a line for each.

    Raises:
        RepositoryCommandError: one is not there; then all of them are left.
    """
    async with _open_admin(settings) as admin:
        rows = [row for row in await admin.rows() if row["id"]]
        chosen = [row for row in rows if row["state"] == "old"] if old else []
        for text in names:
            found = [row for row in rows if admin.is_named(row, text)]
            if not found:
                raise RepositoryCommandError(f"nothing is prepared of {text!r}")
            chosen += found
        for row in chosen:
            await admin.provider.delete_snapshot(SnapshotId(row["id"]))
        return [f"{row['name']}: removed" for row in chosen]


def line_of(row: PreparedRow) -> str:
    """Returns a row for a person."""
    size = "" if row["size_bytes"] is None else f"{row['size_bytes'] / MIB:.0f} MiB"
    name = row["repository"] or row["name"]
    return f"{name:32} {row['state']:9} {row['provider']:7} {row['agent'] or '-':10} {size:>10}  {row['created_at']}"


@asynccontextmanager
async def _open_admin(settings: Settings) -> AsyncIterator[_Admin]:
    masker = start_logging(settings, level="ERROR")
    settings = await learn_host_sets(await with_namespace(settings))
    async with create_provider(settings, await choose_provider(settings)) as provider:
        yield _Admin(
            settings=settings,
            provider=provider,
            environments={
                agent: create_environment(settings, provider, agent=agent)
                for agent in (settings.agents.default, *usable_agents(settings))
            },
            preparations=create_preparations(settings, provider, mask=masker.mask),
            masker=masker,
        )

"""The whole service beside a server of repositories."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from app.web.hosting import serve
from tests.e2e.harness import Stage, open_orion, open_world
from tests.e2e.orion_process import new_state_dir
from tests.git_server import GitServer, settings_for


@asynccontextmanager
async def open_with_repositories(
    tmp_path: Path, prepared: Path, server: GitServer, *, toml: str = "", **settings: str
) -> AsyncIterator[Stage]:
    """Orion in a world of its own, working with this server by the deployment's token, unless the settings say otherwise."""
    async with (
        serve(server.app()) as url,
        open_world() as world,
        open_orion(
            world,
            new_state_dir(tmp_path),
            prepared,
            toml=toml,
            **{**settings_for(url), **settings},
        ) as stage,
    ):
        yield stage

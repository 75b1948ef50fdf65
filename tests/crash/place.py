"""Where the crash tests are played."""

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from app.playground.slack.types import FakeSlackConfig
from tests.crash.function_rig import open_function_rig
from tests.crash.rig import FUNCTIONS, QUICK_RETRIES, Rig, Shape, open_rig
from tests.postgres import create_database
from tests.vercel import deployed


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    directory: Path
    prepared: Path
    server_url: str | None = None
    """Of a PostgreSQL, without a database's name; for the shared shapes."""
    functions: deployed.Place | None = None
    """With functions that are watched, for their shape; of another database and directory."""

    @asynccontextmanager
    async def open_rig(
        self,
        shape: Shape,
        agent: str,
        settings: Mapping[str, str],
        *,
        config: FakeSlackConfig = QUICK_RETRIES,
        asks: bool = False,
    ) -> AsyncIterator[Rig]:
        url = None
        if shape.is_shared:
            assert self.server_url is not None, "a shared shape needs a PostgreSQL"
            url = create_database(self.server_url, f"orion_{secrets.token_hex(4)}")
        if shape == FUNCTIONS:
            assert url is not None
            assert self.functions is not None, "its shape needs a build"
            directory = self.directory / f"f{secrets.token_hex(4)}"
            directory.mkdir()
            place = replace(self.functions, url=url, directory=directory)
            async with open_function_rig(place) as rig:
                yield rig
            return
        async with open_rig(
            self.directory,
            self.prepared,
            shape=shape,
            database_url=url,
            agent=agent,
            config=config,
            settings=settings,
            asks=asks,
        ) as rig:
            yield rig

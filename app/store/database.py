"""A database as the stores use it: short transactions on threads of its own, each with a deadline."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

import sqlalchemy as sa

from app.store.engines import CALL_TIMEOUT_S

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    engine: sa.Engine
    executor: Executor
    name: str
    """What the operator calls it; a path, or a URL without its password."""

    async def call(self, work: Callable[[sa.Connection], T]) -> T:
        """Run blocking code in one transaction.

        Raises:
            TimeoutError: not done within `CALL_TIMEOUT_S`.
            sqlalchemy.exc.SQLAlchemyError
        """

        def in_transaction() -> T:
            with self.engine.begin() as connection:
                return work(connection)

        async with asyncio.timeout(CALL_TIMEOUT_S):
            return await asyncio.get_running_loop().run_in_executor(self.executor, in_transaction)

"""Brokers for sandboxes that run elsewhere: at Orion's public address, or, where it has none, no broker but the provider's own."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from app.brokerage.admission import Admission
from app.runs.broker_ports import AskLeave, BrokerEndpoint, ModelGrant
from app.runs.model import ModelCall
from app.runs.session import SessionId

STAND_IN = "sk-ant-orion-added-outside"
"""What an agent holds where its sandbox's network adds the key; any text of the right shape will do."""


class PublicBroker:
    """Implements ModelBroker: the same routes and tokens as at the doors, reached over the internet."""

    def __init__(self, admission: Admission, *, url: str) -> None:
        self._admission = admission
        self._url = url.rstrip("/")

    def endpoint_for(self, session_id: SessionId) -> BrokerEndpoint:
        del session_id
        return BrokerEndpoint(address=self._url)

    @asynccontextmanager
    async def open_grant(
        self,
        grant: ModelGrant,
        on_call: Callable[[ModelCall], None],
        on_effect: Callable[[], Awaitable[None]] | None = None,
        refusal: AskLeave | None = None,
    ) -> AsyncIterator[str]:
        with self._admission.open_grant(grant, on_call, on_effect, refusal) as token:
            yield token

    def adopt(self, session_id: SessionId, door: SessionId) -> None:
        """All have the same."""

    def close(self, session_id: SessionId) -> None:
        """Nothing was opened."""


class DirectBroker:
    """Implements ModelBroker by the provider's network, which adds the key to what goes to the model.

    What is lost against a broker: the check of the model, limits and counts of calls, and MCP servers that are reached by URL.
    """

    def __init__(self, *, base_url: str, headers: Mapping[str, str]) -> None:
        """`headers` take the place of those in which agents send what stands in for the key."""
        self._endpoint = BrokerEndpoint(
            address=base_url.rstrip("/"), headers=headers, model_url="{relay}"
        )

    def endpoint_for(self, session_id: SessionId) -> BrokerEndpoint:
        del session_id
        return self._endpoint

    @asynccontextmanager
    async def open_grant(
        self,
        grant: ModelGrant,
        on_call: Callable[[ModelCall], None],
        on_effect: Callable[[], Awaitable[None]] | None = None,
        refusal: AskLeave | None = None,
    ) -> AsyncIterator[str]:
        del grant, on_call, on_effect, refusal
        yield STAND_IN

    def adopt(self, session_id: SessionId, door: SessionId) -> None:
        """All have the same."""

    def close(self, session_id: SessionId) -> None:
        """Nothing was opened."""

"""The levers behind the workspace: faults, switches, deliveries, sockets. For tests and for the curious."""

from typing import Literal

from fastapi import APIRouter, HTTPException
from pydantic import BaseModel, ConfigDict, Field

from app.playground.faults import Fault
from app.playground.lookalike import SlackLookalike
from app.playground.slack_types import BOT_USER_ID, Change, JsonObject, SlackError


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NewFault(_Body):
    method: str = "*"
    times: int = Field(default=1, ge=1)
    skip: int = Field(default=0, ge=0)
    status: int | None = None
    error: str | None = None
    retry_after: int | None = None
    drop_after_accept: bool = False
    drop_before_accept: bool = False
    delay_s: float = Field(default=0.0, ge=0, le=120)
    answer_after_s: float = Field(default=0.0, ge=0, le=120)
    is_html: bool = False


class Switches(_Body):
    outage: bool | None = None
    token_revoked: bool | None = None
    clear_faults: bool = False


class ChannelChange(_Body):
    channel: str
    archived: bool | None = None
    bot_member: bool | None = None


class Redelivery(_Body):
    event_id: str
    with_header: bool = True


class Disconnect(_Body):
    reason: Literal["warning", "refresh_requested", "link_disabled"] = "refresh_requested"


class _Levers:
    def __init__(self, lookalike: SlackLookalike) -> None:
        self._lookalike = lookalike
        self._workspace = lookalike.workspace

    async def faults(self, body: NewFault) -> JsonObject:
        self._lookalike.faults.plan(Fault(**body.model_dump()))
        return {"ok": True}

    async def switches(self, body: Switches) -> JsonObject:
        if body.clear_faults:
            self._lookalike.faults.clear()
        if body.outage is not None:
            self._lookalike.faults.outage = body.outage
        if body.token_revoked is not None:
            self._lookalike.faults.token_revoked = body.token_revoked
        self._lookalike.feed.publish({"kind": "state"})
        return {"ok": True}

    async def channels(self, body: ChannelChange) -> JsonObject:
        try:
            channel = self._lookalike.workspace.channel(body.channel)
        except SlackError as refused:
            raise HTTPException(400, refused.error) from refused
        if body.archived is not None:
            channel.is_archived = body.archived
        if body.bot_member is not None:
            channel.members -= {BOT_USER_ID}
            channel.members |= {BOT_USER_ID} if body.bot_member else set()
        self._lookalike.workspace.tell(Change(kind="channel", channel=channel.id))
        return {"ok": True}

    async def deliveries(self) -> JsonObject:
        return {
            "deliveries": self._lookalike.log.entries(),
            "events_url": self._lookalike.events_url,
            "sockets": self._lookalike.sockets.count,
        }

    async def redeliver(self, body: Redelivery) -> JsonObject:
        if not self._lookalike.deliverer.redeliver(body.event_id, with_header=body.with_header):
            raise HTTPException(404, "event_not_found")
        return {"ok": True}

    async def calls(self) -> JsonObject:
        return {"calls": self._lookalike.api.calls}

    async def disconnect(self, body: Disconnect) -> JsonObject:
        return {"told": await self._lookalike.sockets.disconnect(body.reason)}


def control_router(lookalike: SlackLookalike) -> APIRouter:
    """Routes under `/ui` that no person in Slack has."""
    routes = _Levers(lookalike)
    router = APIRouter(prefix="/ui")
    router.post("/faults")(routes.faults)
    router.post("/switches")(routes.switches)
    router.post("/channels")(routes.channels)
    router.get("/deliveries")(routes.deliveries)
    router.post("/redeliver")(routes.redeliver)
    router.get("/calls")(routes.calls)
    router.post("/sockets/disconnect")(routes.disconnect)
    return router

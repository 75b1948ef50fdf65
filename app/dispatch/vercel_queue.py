"""Wake-ups by Vercel Queues. A message names a run and is signed: the row decides, so a forged one could only wake, and is refused."""

import hashlib
import hmac
from collections.abc import AsyncIterable
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from vercel.oidc import VercelOidcTokenError
from vercel.oidc.aio import get_vercel_oidc_token
from vercel.queue import DuplicateIdempotencyKeyError, QueueError, send

from app.runs.request import RunId

TOPIC = "orion-runs"
MAX_BODY_BYTES = 4096
_VERSION = 1


class WakeUp(BaseModel):
    """A message as it travels."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int = Field(_VERSION, ge=_VERSION, le=_VERSION)
    run_id: str = Field(max_length=200)
    number: int = Field(ge=0)
    deployment: str = Field(max_length=200)
    signature: str = Field("", max_length=64)

    def signed(self, key: bytes) -> "WakeUp":
        said = f"{self.version}|{self.run_id}|{self.number}|{self.deployment}"
        signature = hmac.new(key, said.encode(), hashlib.sha256).hexdigest()
        return self.model_copy(update={"signature": signature})


def message_key(secret: str) -> bytes:
    """Returns the key of messages, from a secret that all functions of a deployment have."""
    return hmac.new(secret.encode(), b"orion queue messages", hashlib.sha256).digest()


async def read_body(chunks: AsyncIterable[bytes]) -> bytes:
    """Returns a message's body, or of one that is too long its beginning."""
    read = bytearray()
    async for chunk in chunks:
        read += chunk
        if len(read) > MAX_BODY_BYTES:
            break
    return bytes(read)


def read_wake_up(body: bytes, *, key: bytes, deployment: str) -> WakeUp:
    """Returns a message of this deployment's.

    Raises:
        ValueError: it is none: too long, of another form, of another deployment, or not signed by it.
    """
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"longer than {MAX_BODY_BYTES} bytes")
    try:
        message = WakeUp.model_validate_json(body)
    except ValidationError as exc:
        fields = ", ".join(".".join(map(str, error["loc"])) or "body" for error in exc.errors())
        raise ValueError(f"of another form ({fields})") from exc
    if not hmac.compare_digest(message.signature.encode(), message.signed(key).signature.encode()):
        raise ValueError("not signed by this Orion")
    if message.deployment != deployment:
        raise ValueError(f"of another deployment, {message.deployment!r}")
    return message


@dataclass(frozen=True, slots=True, kw_only=True)
class VercelWakeUps:
    """Implements WakeUps. Region, token and address of the queue are the environment's."""

    key: bytes
    deployment: str
    """Vercel delivers a message to the deployment that has sent it."""

    async def send(self, run_id: RunId, *, number: int, after_s: float = 0) -> None:
        message = WakeUp(run_id=run_id, number=number, deployment=self.deployment)
        try:
            await send(
                TOPIC,
                message.signed(self.key).model_dump_json().encode(),
                idempotency_key=f"{run_id}/{number}",
                delay=round(after_s) or None,
                deployment=self.deployment,
            )
        except DuplicateIdempotencyKeyError:
            return
        except QueueError as exc:
            raise OSError(f"the queue does not take a message: {exc}") from exc


async def identity_token() -> str:
    """Returns the token by which Vercel vouches for this invocation, good for its other services; empty where there is none."""
    try:
        return await get_vercel_oidc_token() or ""
    except VercelOidcTokenError:
        return ""

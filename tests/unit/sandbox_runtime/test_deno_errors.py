"""Every exception of the SDK and of the libraries below it becomes a SandboxError, with its cause."""

import inspect
import json

import deno_sandbox.errors
import httpx
import pytest
import websockets
from deno_sandbox import HTTPStatusError
from websockets.datastructures import Headers
from websockets.http11 import Response

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.providers.deno.client import map_errors
from sandbox_runtime.providers.deno.rpc import ConnectionLost, RemoteError, UnexpectedAnswer

_U, _C, _N, _L = (
    SandboxErrorCode.UNAVAILABLE,
    SandboxErrorCode.CREATE_FAILED,
    SandboxErrorCode.NOT_FOUND,
    SandboxErrorCode.LIMIT_REACHED,
)


def _upgrade(status: int, body: bytes) -> websockets.InvalidStatus:
    return websockets.InvalidStatus(Response(status, "", Headers(), body))


_CASES: list[tuple[Exception, SandboxErrorCode, bool]] = [
    (HTTPStatusError(400, "bad"), _C, False),
    (HTTPStatusError(401, "bad"), _U, False),
    (HTTPStatusError(403, "bad"), _U, False),
    (HTTPStatusError(404, "bad"), _N, False),
    (HTTPStatusError(409, "busy", "VOLUME_IS_MOUNTED"), _C, True),
    (HTTPStatusError(429, "slow"), _L, True),
    (HTTPStatusError(503, "down"), _C, True),
    (_upgrade(404, b"<html>"), _N, False),
    (_upgrade(200, b"<html>"), _C, True),
    (_upgrade(429, json.dumps({"code": "SANDBOX_CONCURRENCY_LIMIT_EXCEEDED", "message": "full"}).encode()), _L, True),
    (websockets.InvalidMessage("odd"), _C, True),
    (websockets.ConnectionClosedError(None, None), _U, True),
    (websockets.ConnectionClosedOK(None, None), _U, True),
    (deno_sandbox.errors.AuthenticationError("no"), _U, False),
    (deno_sandbox.errors.MissingApiToken("no"), _U, False),
    (deno_sandbox.errors.UnknownRpcMethod("no"), _C, False),
    (deno_sandbox.errors.ProcessAlreadyExited("no"), _C, False),
    (deno_sandbox.errors.RpcValidationError([]), _C, False),
    (RemoteError("no"), _C, False),
    (RemoteError("later", retryable=True), _C, True),
    (UnexpectedAnswer("odd"), _C, True),
    (ConnectionLost("cut"), _U, True),
    (httpx.ConnectError("refused"), _U, True),
    (httpx.ReadTimeout("slow"), _U, True),
    (httpx.RemoteProtocolError("cut"), _U, True),
    (json.JSONDecodeError("no", "<html>", 0), _C, True),
    (ConnectionRefusedError(), _U, True),
    (TimeoutError(), _C, True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("raised", "code", "retryable"), _CASES, ids=[repr(raised) for raised, _, _ in _CASES]
)
def test_mapping(raised: Exception, code: SandboxErrorCode, retryable: bool) -> None:
    """Code, whether trying again may help, and the cause."""
    with pytest.raises(SandboxError, match="cannot try") as caught, map_errors.unbounded("cannot try", otherwise=_C):  # fmt: skip
        raise raised
    assert (caught.value.code, caught.value.retryable) == (code, retryable)
    assert caught.value.__cause__ is raised


def test_every_class_of_the_sdk_is_mapped() -> None:
    """A new one in a new SDK shows here."""
    classes = {
        kind
        for _, kind in inspect.getmembers(deno_sandbox.errors, inspect.isclass)
        if issubclass(kind, Exception)
    }
    assert classes == {type(raised) for raised, _, _ in _CASES if type(raised) in classes}

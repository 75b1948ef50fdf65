"""Answers of the emulated platform, in its form, and spoilt ones."""

import json
import secrets
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from tests.emulators.deno.faults import Kind
from tests.emulators.deno.resources import Disk, Refused

_PAGE = 50


def endpoint_of(request: web.Request) -> str:
    """`METHOD /path`, with `*` for ids."""
    resource = request.match_info.route.resource
    path = request.path if resource is None else resource.canonical.replace("{id}", "*")
    return f"{request.method} {path}"


def spoil(kind: Kind, request: web.Request) -> web.StreamResponse:
    match kind:
        case Kind.CUT | Kind.CUT_AFTER:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        case Kind.HTML:
            return web.Response(text="<html>welcome to the hotel</html>", content_type="text/html")
        case Kind.GARBAGE:
            return web.json_response(["odd", 1, None])
        case _:
            raise Refused(500, "INTERNAL_SERVER_ERROR", "an internal error occurred")


async def read_json(request: web.Request) -> Any:
    try:
        return json.loads(await request.read())
    except ValueError as exc:
        raise Refused(400, "BAD_REQUEST", "not JSON") from exc


def refuse(exc: Refused) -> web.Response:
    return web.json_response(
        {"code": exc.code, "message": exc.message},
        status=exc.status,
        headers={"x-deno-trace-id": secrets.token_hex(16)},
    )


def page(request: web.Request, items: Sequence[Any], *, known: set[str]) -> web.Response:
    for name in request.query:
        if name not in known:
            raise Refused(400, "BAD_REQUEST", f"unknown parameter {name}")
    start = int(request.query.get("cursor", "0"))
    limit = min(int(request.query.get("limit", _PAGE)), _PAGE)
    headers = {}
    if start + limit < len(items):
        link = request.url.update_query(cursor=str(start + limit))
        headers["Link"] = f'<{link}>; rel="next"'
    return web.json_response(list(items[start : start + limit]), headers=headers)


def render_volume(disk: Disk) -> dict[str, Any]:
    return {
        "id": disk.id,
        "slug": disk.slug,
        "region": disk.region,
        "capacity": disk.capacity,
        "estimatedAllocatedSize": 0,
        "estimatedFlattenedSize": disk.own_bytes,
        "isBootable": disk.is_bootable,
        "baseSnapshot": _base(disk),
    }


def render_snapshot(disk: Disk) -> dict[str, Any]:
    return {
        "id": disk.id,
        "slug": disk.slug,
        "region": disk.region,
        "allocatedSize": disk.own_bytes,
        "flattenedSize": disk.capacity,
        "isBootable": disk.is_bootable,
        "baseSnapshot": _base(disk),
    }


def _base(disk: Disk) -> dict[str, str] | None:
    return None if disk.source is None else {"id": disk.source.id, "slug": disk.source.slug}

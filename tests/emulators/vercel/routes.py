"""The endpoints of the emulated API. Source: vercel-sandbox 0.10.0, api_client.py, and what it sends."""

import base64
import json
import shlex
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from tests.emulators.vercel.commands import Command, start_command
from tests.emulators.vercel.world import (
    MAX_TIMEOUT_MS,
    PROJECT,
    Refused,
    SandboxRecord,
    Session,
    World,
    check_tags,
    parse_policy,
)

NDJSON = "application/x-ndjson"
_PAGE = 20
_ARCHIVE_BYTES = 512 * 1024 * 1024


def add_routes(app: FastAPI, world: Callable[[], World]) -> None:
    """Each answers as the service does; what it refuses is raised as `Refused`."""
    _add_sandboxes(app, world)
    _add_snapshots(app, world)
    _add_records(app, world)
    _add_sessions(app, world)
    _add_commands(app, world)
    _add_input(app, world)
    _add_files(app, world)


def _record(world: World, name: str) -> SandboxRecord:
    if name not in world.sandboxes:
        raise Refused(404, "not_found", f"no sandbox {name}")
    return world.sandboxes[name]


def _session(world: World, session_id: str) -> Session:
    if session_id not in world.sessions:
        raise Refused(404, "not_found", "no such session")
    return world.sessions[session_id]


def _both(record: SandboxRecord) -> dict[str, Any]:
    assert record.session is not None
    return {"sandbox": record.state(), "session": record.session.state(), "routes": []}


def _page(request: Request, key: str, items: list[dict[str, Any]]) -> dict[str, Any]:
    limit = int(request.query_params.get("limit", _PAGE))
    first = int(request.query_params.get("cursor", 0))
    following = str(first + limit) if first + limit < len(items) else None
    page = items[first : first + limit]
    return {key: page, "pagination": {"count": len(page), "next": following, "prev": None}}


def _add_sandboxes(app: FastAPI, world: Callable[[], World]) -> None:
    @app.post("/api/v3/sandboxes", name="create")
    async def create(request: Request) -> dict[str, Any]:
        body = await request.json()
        if body["projectId"] != PROJECT:
            raise Refused(403, "forbidden")
        return _both(await world().create(body))

    @app.get("/api/v2/sandboxes", name="list")
    async def list_sandboxes(request: Request) -> dict[str, Any]:
        prefix = request.query_params.get("namePrefix", "")
        key, _, value = request.query_params.get("tags", "").partition(":")
        found = [
            record.state()
            for record in world().sandboxes.values()
            if record.session is not None
            and record.name.startswith(prefix)
            and (not key or record.tags.get(key) == value)
        ]
        return _page(request, "sandboxes", found)


def _add_snapshots(app: FastAPI, world: Callable[[], World]) -> None:
    @app.get("/api/v2/sandboxes/snapshots", name="snapshots")
    async def list_snapshots(request: Request) -> dict[str, Any]:
        return _page(request, "snapshots", list(world().snapshots.values()))

    @app.get("/api/v2/sandboxes/snapshots/{snapshot_id}", name="get_snapshot")
    async def get_snapshot(snapshot_id: str) -> dict[str, Any]:
        if snapshot_id not in world().snapshots:
            raise Refused(404, "not_found")
        return {"snapshot": world().snapshots[snapshot_id]}

    @app.delete("/api/v2/sandboxes/snapshots/{snapshot_id}", name="delete_snapshot")
    async def delete_snapshot(snapshot_id: str) -> dict[str, Any]:
        state = (await get_snapshot(snapshot_id))["snapshot"]
        await world().delete_snapshot(snapshot_id)
        return {"snapshot": {**state, "status": "deleted"}}


def _add_records(app: FastAPI, world: Callable[[], World]) -> None:
    @app.get("/api/v2/sandboxes/sessions", name="sessions")
    async def list_sessions(request: Request) -> dict[str, Any]:
        name = request.query_params.get("name")
        found = [s.state() for s in world().sessions.values() if name in (None, s.sandbox.name)]
        return _page(request, "sessions", found)

    @app.get("/api/v2/sandboxes/{name}", name="get")
    async def get(name: str, request: Request) -> dict[str, Any]:
        record = _record(world(), name)
        if request.query_params.get("resume") == "true":
            raise Refused(400, "bad_request", "nobody may resume a sandbox here")
        return _both(record)

    @app.patch("/api/v2/sandboxes/{name}", name="update")
    async def update(name: str, request: Request) -> dict[str, Any]:
        record, body = _record(world(), name), await request.json()
        if "tags" in body:
            check_tags(body["tags"])
            record.tags = body["tags"]
        record.persistent = body.get("persistent", record.persistent)
        return {"sandbox": record.state()}

    @app.delete("/api/v2/sandboxes/{name}", name="destroy")
    async def destroy(name: str, request: Request) -> dict[str, Any]:
        record = _record(world(), name)
        with_snapshots = request.query_params.get("deleteOrphanSnapshots") == "true"
        await world().destroy(record, with_snapshots=with_snapshots)
        return {"sandbox": record.state()}


def _add_sessions(app: FastAPI, world: Callable[[], World]) -> None:
    path = "/api/v2/sandboxes/sessions/{session_id}"

    @app.get(path, name="session")
    async def get(session_id: str) -> dict[str, Any]:
        return {"session": _session(world(), session_id).state()}

    @app.post(f"{path}/stop", name="stop")
    async def stop(session_id: str) -> dict[str, Any]:
        session = _session(world(), session_id)
        session.require_running()
        await world().stop(session)
        return {"session": session.state()}

    @app.post(f"{path}/extend-timeout", name="extend")
    async def extend(session_id: str, request: Request) -> dict[str, Any]:
        session = _session(world(), session_id)
        session.require_running()
        duration = (await request.json())["duration"]
        if duration < 1000 or session.timeout_ms + duration > MAX_TIMEOUT_MS:
            raise Refused(400, "bad_request", "duration")
        session.timeout_ms += duration
        return {"session": session.state()}

    @app.post(f"{path}/network-policy", name="policy")
    async def policy(session_id: str, request: Request) -> dict[str, Any]:
        session = _session(world(), session_id)
        session.require_running()
        session.machine.network.policy = parse_policy(await request.json(), world().authority)
        return {"session": session.state()}

    @app.post(f"{path}/snapshot", name="snapshot")
    async def snapshot(session_id: str, request: Request) -> dict[str, Any]:
        session = _session(world(), session_id)
        body = await request.json() if await request.body() else {}
        made = await world().snapshot(session, body.get("expiration"))
        return {"snapshot": made, "session": session.state()}


_COMMANDS = "/api/v2/sandboxes/sessions/{session_id}/cmd"


def _command(world: World, session_id: str, command_id: str) -> Command:
    session = _session(world, session_id)
    session.require_running()
    if command_id not in session.commands:
        raise Refused(404, "not_found", "no such command")
    return session.commands[command_id]


def _add_commands(app: FastAPI, world: Callable[[], World]) -> None:
    @app.post(_COMMANDS, name="start")
    async def start(session_id: str, request: Request) -> Response:
        session, body = _session(world(), session_id), await request.json()
        session.require_running()
        command = await start_command(
            world().group, session.machine, session_id, body, env=session.sandbox.env
        )
        session.commands[command.id] = command
        if request.query_params.get("wait") != "true":
            return JSONResponse({"command": command.state()})
        return StreamingResponse(_told(session, command), media_type=NDJSON)

    @app.get(_COMMANDS, name="commands")
    async def commands(session_id: str) -> dict[str, Any]:
        session = _session(world(), session_id)
        return {"commands": [command.state() for command in session.commands.values()]}

    @app.get(f"{_COMMANDS}/{{command_id}}", name="command")
    async def get(session_id: str, command_id: str, request: Request) -> dict[str, Any]:
        command = _command(world(), session_id, command_id)
        if request.query_params.get("wait") == "true":
            await command.wait()
        return {"command": command.state()}

    @app.get(f"{_COMMANDS}/{{command_id}}/logs", name="logs")
    async def logs(session_id: str, command_id: str) -> Response:
        command = _command(world(), session_id, command_id)
        return StreamingResponse(
            _until_stopped(world().sessions[session_id], command), media_type=NDJSON
        )


def _add_input(app: FastAPI, world: Callable[[], World]) -> None:
    @app.post(f"{_COMMANDS}/{{command_id}}/kill", name="kill")
    async def kill(session_id: str, command_id: str, request: Request) -> dict[str, Any]:
        command = _command(world(), session_id, command_id)
        command.process.signal(int((await request.json())["signal"]))
        return {"command": command.state()}

    @app.post(f"{_COMMANDS}/{{command_id}}/stdin", name="stdin")
    async def stdin(session_id: str, command_id: str, request: Request) -> dict[str, Any]:
        command, body = _command(world(), session_id, command_id), await request.json()
        if not command.takes_input:
            raise Refused(400, "command_stdin_unavailable")
        offset = body.get("offset")
        if offset is not None and offset > command.bytes_written:
            raise Refused(400, "bad_request", "offset")
        if "data" in body and not await command.write(base64.b64decode(body["data"]), offset):
            raise Refused(504, "timeout")
        if body.get("close"):
            command.close_input()
        return {"command": command.state(), "bytesWritten": command.bytes_written}


async def _told(session: Session, command: Command) -> AsyncIterator[bytes]:
    yield _line(command)
    async for line in _until_stopped(session, command):
        yield line
    await command.wait()
    yield _line(command)


def _line(command: Command) -> bytes:
    return json.dumps({"command": command.state()}).encode() + b"\n"


async def _until_stopped(session: Session, command: Command) -> AsyncIterator[bytes]:
    async for line in command.lines():
        yield line
    if session.status != "running":
        message = b'{"code": "sandbox_stopped", "message": "the session is stopped"}'
        yield b'{"stream": "error", "data": ' + message + b"}\n"


def _add_files(app: FastAPI, world: Callable[[], World]) -> None:
    path = "/api/v2/sandboxes/sessions/{session_id}/fs"

    @app.post(f"{path}/write", name="write")
    async def write(session_id: str, request: Request) -> dict[str, Any]:
        session = _session(world(), session_id)
        session.require_running()
        archive = await request.body()
        if len(archive) > _ARCHIVE_BYTES:
            raise Refused(413, "payload_too_large")
        done = await session.machine.run(
            ["tar", "-xzf", "-", "-C", request.headers["x-cwd"]], data=archive
        )
        if done.code != 0:
            raise Refused(400, "bad_request", done.stderr.decode())
        return {}

    @app.post(f"{path}/read", name="read")
    async def read(session_id: str, request: Request) -> Response:
        session, body = _session(world(), session_id), await request.json()
        session.require_running()
        script = f"cd {shlex.quote(body.get('cwd') or '/')} && cat -- {shlex.quote(body['path'])}"
        done = await session.machine.run(["sh", "-c", script])
        if done.code != 0:
            raise Refused(404, "file_not_found", done.stderr.decode())
        return Response(done.stdout, media_type="application/octet-stream")

    @app.post(f"{path}/mkdir", name="mkdir")
    async def mkdir(session_id: str, request: Request) -> dict[str, Any]:
        session, body = _session(world(), session_id), await request.json()
        session.require_running()
        done = await session.machine.run(["mkdir", "-p", "--", body["path"]])
        if done.code != 0:
            raise Refused(400, "bad_request", done.stderr.decode())
        return {}

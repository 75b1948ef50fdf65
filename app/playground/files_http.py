"""Moving file bytes: uploads by the app, downloads with its token."""

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from app.playground.file_store import FileStore
from app.playground.slack_types import LookalikeConfig


def file_routes(files: FileStore, *, config: LookalikeConfig) -> list[Route]:
    """`POST /upload/{id}` and `GET /files-pri/{id}/{name}`."""

    async def upload(request: Request) -> Response:
        # The Python SDK uploads the bare bytes (slack_sdk 3.47, files_upload_v2), not a multipart form.
        content = await request.body()
        accepted = files.fill(request.path_params["file_id"], content)
        return PlainTextResponse(
            f"OK - {len(content)}" if accepted else "bad upload", 200 if accepted else 400
        )

    async def download(request: Request) -> Response:
        stored = files.get(request.path_params["file_id"])
        # Without access Slack answers 200 with its login page. Source: integrators' reports on url_private, read 2026-11.
        if request.headers.get("authorization") != f"Bearer {config.bot_token}":
            return HTMLResponse("<!DOCTYPE html><title>Sign in</title>")
        if stored is None or stored.content is None:
            return PlainTextResponse("not found", 404)
        return Response(stored.content, media_type=stored.mimetype)

    return [
        Route("/upload/{file_id}", upload, methods=["POST"]),
        Route("/files-pri/{file_id}/{name:path}", download, methods=["GET"]),
    ]

"""What the operators' page is compared with: a bare FastAPI app that answers with the same bytes, which are there.

`python -m tests.bench.bare_pages PORT DIRECTORY`: the file `0` of the directory at `/0`, and so on.
"""

import asyncio
import sys
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from starlette.responses import PlainTextResponse, Response

app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
BODIES = {path.name: path.read_bytes() for path in Path(sys.argv[2]).iterdir()}


@app.get("/healthz")
async def healthz() -> Response:
    return PlainTextResponse("ok")


@app.get("/{name}")
async def answer(name: str) -> Response:
    return Response(BODIES[name], media_type="application/json")


if __name__ == "__main__":
    config = uvicorn.Config(app, port=int(sys.argv[1]), log_level="warning")
    asyncio.run(uvicorn.Server(config).serve())

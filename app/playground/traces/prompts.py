"""Prompts with versions and labels, kept in memory and refused as Langfuse keeps and refuses them.

Source: Langfuse server 4.16.0, web/src/features/prompts/server and packages/shared/src/features/prompts/types.ts, read 2026-11.
"""

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeGuard

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

KEPT_VERSIONS: Final = 200
"""Of all prompts; the oldest are dropped."""
_LATEST: Final = "latest"
_LABEL: Final = re.compile(r"[a-z0-9_.-]{1,36}")
_MAX_NAME_CHARS: Final = 255
_MAX_MESSAGE_CHARS: Final = 500

Version = dict[str, Any]


class RefusedError(Exception):
    """What is asked for cannot be done; HTTP 400."""


class PromptStore:
    """Versions of prompts. A label is at one version of its name; `latest` at the last one that was made."""

    def __init__(self) -> None:
        self.versions: list[Version] = []

    def find(self, name: str, *, version: int | None, label: str) -> Version | None:
        """Returns the version of that number, or with that label."""
        for one in self.versions:
            is_it = one["version"] == version if version else label in one["labels"]
            if one["name"] == name and is_it:
                return one
        return None

    def add(self, asked: object) -> Version:
        """Makes the next version of a text. Raises: RefusedError."""
        if not isinstance(asked, dict):
            raise RefusedError("no object")
        if problem := _problem_of(asked):
            raise RefusedError(problem)
        name = asked["name"]
        last = self.find(name, version=None, label=_LATEST)
        made = {
            "name": name,
            "version": last["version"] + 1 if last else 1,
            "type": "text",
            "prompt": asked["prompt"],
            "config": asked.get("config") or {},
            "labels": [],
            "tags": asked.get("tags") or (last["tags"] if last else []),
            "commitMessage": asked.get("commitMessage"),
        }
        self.versions.append(made)
        self._label(made, [*asked.get("labels", ()), _LATEST])
        del self.versions[:-KEPT_VERSIONS]
        return made

    def label(self, name: str, version: int, labels: object) -> Version | None:
        """Puts labels at a version, beside those that it has. Raises: RefusedError."""
        if not _are_texts(labels) or _LATEST in labels:
            raise RefusedError("Label 'latest' is always assigned to the latest prompt version")
        found = self.find(name, version=version, label="")
        if found is not None:
            self._label(found, labels)
        return found

    def _label(self, at: Version, labels: list[str]) -> None:
        for one in self.versions:
            if one["name"] == at["name"] and one is not at:
                one["labels"] = [label for label in one["labels"] if label not in labels]
        at["labels"] = list(dict.fromkeys([*at["labels"], *labels]))


def _problem_of(asked: dict[str, Any]) -> str:
    labels, name = asked.get("labels", []), asked.get("name")
    refused = {
        "name": not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME_CHARS,
        "prompt": not isinstance(asked.get("prompt"), str),
        # May be left out, and may not be null.
        "type": asked.get("type", "text") != "text",
        "labels": not _are_texts(labels) or not all(_LABEL.fullmatch(one) for one in labels),
        "tags": not _are_texts(asked.get("tags") or []),
        "commitMessage": len(str(asked.get("commitMessage") or "")) > _MAX_MESSAGE_CHARS,
    }
    return ", ".join(field for field, is_refused in refused.items() if is_refused)


def _are_texts(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def add_prompts(
    router: APIRouter,
    store: PromptStore,
    *,
    authorize: Callable[[Request], None],
    body_of: Callable[[Request], Awaitable[bytes]],
) -> None:
    """Adds Langfuse's requests for prompts."""

    async def read(request: Request) -> object:
        authorize(request)
        try:
            return json.loads(await body_of(request))
        except ValueError as exc:
            raise RefusedError("no JSON") from exc

    @router.get("/api/public/v2/prompts/{name}")
    async def show_prompt(
        request: Request, name: str, version: int | None = None, label: str = ""
    ) -> JSONResponse:
        authorize(request)
        if version and label:
            return _refused("Cannot specify both version and label")
        found = store.find(name, version=version, label=label or "production")
        which = f"version {version}" if version else f"label '{label or 'production'}'"
        return _answered(found) if found else _missing(f"Prompt not found: '{name}' with {which}")

    @router.post("/api/public/v2/prompts")
    async def make_version(request: Request) -> JSONResponse:
        try:
            made = store.add(await read(request))
        except RefusedError as exc:
            return _refused(str(exc))
        return _answered(made, status=201)

    @router.patch("/api/public/v2/prompts/{name}/versions/{version}")
    async def put_labels(request: Request, name: str, version: int) -> JSONResponse:
        try:
            asked = await read(request)
            labels = asked.get("newLabels") if isinstance(asked, dict) else None
            found = store.label(name, version, labels)
        except RefusedError as exc:
            return _refused(str(exc))
        return _answered(found) if found else _missing(f"Prompt not found: {name}")


def _answered(version: Version, *, status: int = 200) -> JSONResponse:
    return JSONResponse({"id": f"{version['name']}-{version['version']}", **version}, status)


def _refused(why: str) -> JSONResponse:
    return JSONResponse({"message": why, "error": "InvalidRequestError"}, 400)


def _missing(what: str) -> JSONResponse:
    return JSONResponse({"message": what, "error": "LangfuseNotFoundError"}, 404)

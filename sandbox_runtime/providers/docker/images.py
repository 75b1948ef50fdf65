"""The engine's images as snapshots and bases need them: typed, bounded, errors mapped."""

import asyncio
import io
import re
import tarfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import aiodocker

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.finishing import finish
from sandbox_runtime.providers.docker.engine import FINISH_TIMEOUT_S, Engine
from sandbox_runtime.providers.docker.errors import asking, map_docker_errors

_COMMIT_TIMEOUT_S = 600.0
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageState:
    id: str
    created_at: datetime
    labels: Mapping[str, str]
    size_bytes: int
    """With all the images below it."""


class Images:
    """Of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._images = engine.docker.images
        self._containers = engine.docker.containers

    async def find(self, reference: str) -> ImageState | None:
        """By name or id."""
        try:
            async with asking(f"no image {reference}"):
                found = await self._images.inspect(reference)
        except SandboxError as exc:
            if exc.code is SandboxErrorCode.NOT_FOUND:
                return None
            raise
        return ImageState(
            id=found["Id"],
            created_at=datetime.fromisoformat(found["Created"]),
            labels=found["Config"].get("Labels") or {},
            size_bytes=found["Size"],
        )

    async def list(self, labels: Sequence[str], *, dangling: bool) -> list[ImageState]:
        """Those with all the labels, `key` or `key=value`, that have a name or, `dangling`, that lost it."""
        filters = {"label": list(labels), "dangling": ["true" if dangling else "false"]}
        async with asking("cannot list images"):
            found = await self._images.list(filters=filters)
        return [
            ImageState(
                id=image["Id"],
                created_at=datetime.fromtimestamp(image["Created"], UTC),
                labels=image["Labels"] or {},
                size_bytes=image["Size"],
            )
            for image in found
        ]

    async def commit(self, container_id: str, reference: str, labels: Mapping[str, str]) -> str:
        """Make an image of a container's root file system; its id. Mounts are not a part of it.

        A cancelled call leaves no image.
        """
        try:
            return await finish(
                self._commit(container_id, reference, labels), timeout_s=FINISH_TIMEOUT_S
            )
        except asyncio.CancelledError:
            await self.remove(reference)
            raise

    async def _commit(self, container_id: str, reference: str, labels: Mapping[str, str]) -> str:
        repository, _, tag = reference.rpartition(":")
        async with asking("cannot save a container", timeout_s=_COMMIT_TIMEOUT_S):
            made = await self._containers.container(container_id).commit(
                repository=repository, tag=tag, config={"Labels": dict(labels)}
            )
        return str(made["Id"])

    async def remove(self, reference: str) -> None:
        """Take the name away, and the image with it when nothing else needs it. One that is gone is fine."""
        async with asking(f"cannot remove image {reference}"):
            try:
                await self._images.delete(reference, force=True)
            except aiodocker.DockerError as exc:
                if exc.status != 404:  # noqa: PLR2004  # HTTP
                    raise

    async def remove_dangling(self, labels: Sequence[str]) -> None:
        """Those with the labels that have no name and that nothing needs."""
        for image in await self.list(labels, dangling=True):
            async with asking("cannot remove an image"):
                try:
                    await self._images.delete(image.id)
                except aiodocker.DockerError as exc:
                    if exc.status not in (404, 409):  # gone; a container or another image needs it
                        raise

    async def build(
        self,
        dockerfile: bytes,
        *,
        reference: str,
        labels: Mapping[str, str],
        arguments: Mapping[str, str],
    ) -> AsyncIterator[str]:
        """Build it, telling what the engine says. The caller bounds it.

        Raises:
            SandboxError: SETUP_FAILED when a step fails.
        """
        with map_docker_errors(
            f"cannot build {reference}",
            otherwise=SandboxErrorCode.SETUP_FAILED,
            missing=SandboxErrorCode.SETUP_FAILED,
        ):
            answers = self._images.build(
                fileobj=_context(dockerfile),
                encoding="identity",
                tag=reference,
                labels=dict(labels),
                buildargs=dict(arguments),
                rm=True,
                forcerm=True,
                stream=True,
            )
            async for answer in answers:
                if text := _COLOUR.sub("", str(answer.get("stream", ""))).strip():
                    yield text


def _context(dockerfile: bytes) -> io.BytesIO:
    file = io.BytesIO()
    with tarfile.open(mode="w", fileobj=file) as archive:
        member = tarfile.TarInfo("Dockerfile")
        member.size = len(dockerfile)
        archive.addfile(member, io.BytesIO(dockerfile))
    file.seek(0)
    return file

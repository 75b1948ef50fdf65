"""The engine's images, typed, bounded, errors mapped; and the base image: the operator's own, or one built from the Dockerfile here."""

import asyncio
import hashlib
import io
import re
import tarfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files

import aiodocker

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.lifecycle import shielded
from sandbox_runtime.provider import ProgressListener
from sandbox_runtime.providers.docker import DockerSettings
from sandbox_runtime.providers.docker.client import FINISH_TIMEOUT_S, Engine, map_errors
from sandbox_runtime.providers.docker.labels import namespace

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
    def __init__(self, engine: Engine) -> None:
        self._images = engine.docker.images
        self._containers = engine.docker.containers

    async def find(self, reference: str) -> ImageState | None:
        try:
            async with map_errors(f"no image {reference}"):
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
        """Lists images with all the labels, `key` or `key=value`, that have a name or, `dangling`, that lost it."""
        filters = {"label": list(labels), "dangling": ["true" if dangling else "false"]}
        async with map_errors("cannot list images"):
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
        """Makes an image of a container's root file system, without its mounts; returns its id.

        A cancelled call leaves no image.
        """
        try:
            return await shielded(
                self._commit(container_id, reference, labels), timeout_s=FINISH_TIMEOUT_S
            )
        except asyncio.CancelledError:
            await self.remove(reference)
            raise

    async def _commit(self, container_id: str, reference: str, labels: Mapping[str, str]) -> str:
        repository, _, tag = reference.rpartition(":")
        async with map_errors("cannot save a container", timeout_s=_COMMIT_TIMEOUT_S):
            made = await self._containers.container(container_id).commit(
                repository=repository, tag=tag, config={"Labels": dict(labels)}
            )
        return str(made["Id"])

    async def remove(self, reference: str) -> None:
        """Takes the name away, and the image with it when nothing else needs it. One that is gone is fine."""
        async with map_errors(f"cannot remove image {reference}"):
            try:
                await self._images.delete(reference, force=True)
            except aiodocker.DockerError as exc:
                if exc.status != 404:  # noqa: PLR2004  # HTTP
                    raise

    async def remove_dangling(self, labels: Sequence[str]) -> None:
        """Removes images with the labels that have no name and that nothing needs."""
        for image in await self.list(labels, dangling=True):
            async with map_errors("cannot remove an image"):
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
        """Builds an image, yielding what the engine says. The caller bounds it. Raises: SandboxError: SETUP_FAILED when a step fails."""
        with map_errors.unbounded(
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


BUILD_TIMEOUT_S = 1800.0
_TAIL_LINES, _TAIL_CHARS = 10, 2000
_STEP = "Step "
_PROXIES = ("http_proxy", "https_proxy", "no_proxy")

DOCKERFILE = (files("sandbox_runtime.providers.docker") / "Dockerfile").read_bytes()


class BaseImage:
    """Named by the digest of what goes into it, so that a change makes another one."""

    def __init__(
        self, images: Images, settings: DockerSettings, *, dockerfile: bytes = DOCKERFILE
    ) -> None:
        self._images = images
        self._given = settings.image
        self._dockerfile = dockerfile
        self._name = settings.name
        self._arguments = {"GIT_NAME": settings.git_name, "GIT_EMAIL": settings.git_email}
        if settings.base is not None:
            self._arguments["BASE"] = settings.base
        self._proxies = _proxies(settings.host_env)

    @property
    def reference(self) -> str:
        if self._given is not None:
            return self._given
        parts = [self._dockerfile, *(f"{k}={v}".encode() for k, v in self._arguments.items())]
        return f"orion-base:{hashlib.sha256(b'/'.join(parts)).hexdigest()[:16]}"

    async def find(self, image_id: str | None = None) -> ImageState | None:
        """Returns the present one, when it exists, or an earlier one by its id."""
        return await self._images.find(image_id or self.reference)

    async def ensure(self, tell: ProgressListener) -> ImageState:
        """Returns the image, built if it does not exist.

        Raises:
            SandboxError: SETUP_FAILED when it cannot be built, or the operator's own does not exist.
        """
        tell("checking")
        found = await self.find()
        if found is not None:
            tell("exists")
            return found
        if self._given is not None:
            raise SandboxError(
                SandboxErrorCode.SETUP_FAILED, f"the engine has no image {self._given}: pull it"
            )
        tell("creating")
        try:
            await self._build(tell)
        except BaseException:
            tell("error")
            raise
        found = await self.find()
        if found is None:
            raise SandboxError(
                SandboxErrorCode.SETUP_FAILED, f"{self.reference} vanished after it was built"
            )
        tell("done")
        return found

    async def _build(self, tell: ProgressListener) -> None:
        said: list[str] = []
        try:
            async with asyncio.timeout(BUILD_TIMEOUT_S):
                async for text in self._images.build(
                    self._dockerfile,
                    reference=self.reference,
                    labels=namespace(self._name),
                    arguments={**self._proxies, **self._arguments},
                ):
                    said = [*said, text][-_TAIL_LINES:]
                    if text.startswith(_STEP):
                        tell(f"installing, {text.partition(' :')[0].lower()}")
        except TimeoutError as exc:
            raise SandboxError(
                SandboxErrorCode.SETUP_FAILED,
                f"{self.reference} was not built within {BUILD_TIMEOUT_S:g} s",
            ) from exc
        except SandboxError as exc:
            last = "\n".join(said)[-_TAIL_CHARS:]
            raise SandboxError(
                exc.code, f"{exc}; it said last:\n{last}", retryable=exc.retryable
            ) from exc


def _proxies(host_env: Mapping[str, str]) -> dict[str, str]:
    """Source: Docker documentation, "Dockerfile reference", predefined ARGs, read 2026-11."""
    return {name: value for name, value in host_env.items() if name.lower() in _PROXIES}

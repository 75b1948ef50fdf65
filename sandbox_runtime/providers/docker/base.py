"""The base image: the operator's own, or one built from the Dockerfile beside this file."""

import asyncio
import hashlib
from collections.abc import Mapping
from importlib.resources import files

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import ProgressListener
from sandbox_runtime.providers.docker.images import Images, ImageState
from sandbox_runtime.providers.docker.labels import namespace
from sandbox_runtime.providers.docker.settings import DockerSettings

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
        """The present one, when it exists, or an earlier one by its id."""
        return await self._images.find(image_id or self.reference)

    async def ensure(self, tell: ProgressListener) -> ImageState:
        """Built if it does not exist.

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

"""What only Langfuse knows, which it is asked for behind everything else: its project, and the version of the system prompt.

By the SDK's generated client, whose calls end: `get_prompt` would keep a thread that refreshes what it has read.
Source: langfuse 5.0.4, and Langfuse server 4.16.0, web/src/features/prompts/server, read 2026-11.
"""

import hashlib
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, TypeVar

from langfuse.api import CreateTextPromptRequest, Error, LangfuseAPI, NotFoundError
from langfuse.api.core import ApiError, RequestOptions
from langfuse.api.projects import Projects
from langfuse.api.prompts import Prompt

from app.log import get_logger
from app.tracing.observations import PROMPT_NAME

_log = get_logger(__name__)
_T = TypeVar("_T")

ASK_AGAIN_S: Final = 60.0
"""After a question that Langfuse did not answer."""
_ONCE: Final = RequestOptions(max_retries=0)
"""It is asked again anyway; and what was answered by a 500 may have been done."""
_MAX_LABEL_CHARS: Final = 36
_MAX_REASON_CHARS: Final = 300


class Asked(Generic[_T]):
    """An answer of Langfuse's: asked for in the background when somebody wants it, and again later while there is none."""

    def __init__(self, ask: Callable[[], _T], *, about: str, again_s: float) -> None:
        self._ask = ask
        self._about = about
        self._again_s = again_s
        self._answer: _T | None = None
        self._thread: threading.Thread | None = None
        self._asked_s = 0.0
        self._has_told = False

    def get(self) -> _T | None:
        """Returns the answer, at once; None while there is none."""
        if self._answer is None and self._may_ask():
            self._asked_s = time.monotonic()
            name = f"langfuse-{self._about}"
            self._thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._thread.start()
        return self._answer

    def wait(self, timeout_s: float) -> None:
        """Returns when nothing is being asked, or after that time."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _may_ask(self) -> bool:
        if self._thread is None:
            return True
        return not self._thread.is_alive() and time.monotonic() - self._asked_s >= self._again_s

    def _work(self) -> None:
        try:
            self._answer = self._ask()
        except Exception as exc:  # noqa: BLE001 - nobody waits for this thread, and no run may fail by it
            if not self._has_told:
                self._has_told = True
                said = exc.body if isinstance(exc, ApiError) else exc
                reason = f"{type(exc).__name__}: {said}"[:_MAX_REASON_CHARS]
                _log.warning("langfuse.not_answered", about=self._about, reason=reason)


class TracePages:
    """Where the pages of traces are: below a project that only Langfuse knows."""

    def __init__(self, api: LangfuseAPI, *, base_url: str, again_s: float) -> None:
        self._base_url = base_url
        self._api = api
        self._project = Asked(self._ask, about="project", again_s=again_s)

    def project(self) -> str:
        """Returns the id of the project; empty while it is not known."""
        return self._project.get() or ""

    def wait(self, timeout_s: float) -> None:
        """Returns when nothing is being asked, or after that time."""
        self._project.wait(timeout_s)

    def address(self, trace_id: str) -> str:
        """Returns the address of a trace's page; empty while the project is not known."""
        project = self.project()
        return f"{self._base_url}/project/{project}/traces/{trace_id}" if project else ""

    def _ask(self) -> str:
        found: Projects = self._api.projects.get(request_options=_ONCE)
        return found.data[0].id


class SystemPrompt:
    """The system prompt as one of Langfuse's, which has a version for each text; made there where there is none yet.

    A label that says which text it is finds the version. So a text that comes back, or that another deployment of the
    same project has, is the version that it was; and several processes that make one at once agree at their next start.
    Another label, the environment, shows which version a deployment has; nobody reads it.
    """

    def __init__(
        self,
        api: LangfuseAPI,
        text: str,
        *,
        mask: Callable[[str], str],
        environment: str,
        release: str,
        again_s: float,
    ) -> None:
        """`text`: empty = there is none to be linked to, and Langfuse is asked for nothing."""
        self._api = api
        self._text = text
        self._mask = mask
        self._environment = environment[:_MAX_LABEL_CHARS]
        self._message = f"Orion, release {release}" if release else "Orion"
        self._version = Asked(self._ask, about="prompt", again_s=again_s)

    def version(self) -> int | None:
        """Returns the version that Langfuse has of the text; None while it is not known."""
        return self._version.get() if self._text else None

    def wait(self, timeout_s: float) -> None:
        """Returns when nothing is being asked, or after that time."""
        self._version.wait(timeout_s)

    def _ask(self) -> int:
        text = self._mask(self._text)
        label = f"text-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        found = self._find(label)
        if found is None:
            try:
                found = self._make(text, label)
            except Error:  # HTTP 400, also where another process has just made that version
                found = self._find(label)
                if found is None:
                    raise
        if self._environment not in found.labels:
            with suppress(Exception):  # it is for people's eyes only
                self._api.prompt_version.update(
                    PROMPT_NAME,
                    found.version,
                    new_labels=[self._environment],
                    request_options=_ONCE,
                )
        return found.version

    def _find(self, label: str) -> Prompt | None:
        try:
            # `resolve`: the text as it is, even if it names other prompts, and past the server's cache.
            found: Prompt = self._api.prompts.get(
                PROMPT_NAME, label=label, resolve=False, request_options=_ONCE
            )
        except NotFoundError:
            return None
        return found

    def _make(self, text: str, label: str) -> Prompt:
        request = CreateTextPromptRequest(
            name=PROMPT_NAME,
            prompt=text,
            labels=[label, self._environment],
            commit_message=self._message,
        )
        made: Prompt = self._api.prompts.create(request=request, request_options=_ONCE)
        return made

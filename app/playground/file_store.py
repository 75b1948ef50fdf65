"""Files people attach and the app uploads, held in memory within a bound."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from app.playground.slack_types import JsonObject, SlackError, new_id

FILE_MAX_BYTES = 10 * 1024 * 1024
FILES_MAX = 100


@dataclass(slots=True, kw_only=True)
class StoredFile:
    id: str
    name: str
    mimetype: str
    size: int
    content: bytes | None = field(default=None, repr=False)

    def render(self, *, base_url: str) -> JsonObject:
        address = f"{base_url}/files-pri/{self.id}/{self.name}"
        return {
            "id": self.id,
            "name": self.name,
            "title": self.name,
            "mimetype": self.mimetype,
            "filetype": self.name.rpartition(".")[2] if "." in self.name else "text",
            "size": self.size,
            "mode": "hosted",
            "url_private": address,
            "url_private_download": f"{address}?download=1",
        }


class FileStore:
    def __init__(self) -> None:
        self._files: dict[str, StoredFile] = {}

    def reserve(self, *, name: str, size: int, mimetype: str = "text/plain") -> StoredFile:
        if not 0 < size <= FILE_MAX_BYTES:
            raise SlackError("file_upload_size_restricted")
        stored = StoredFile(id=new_id("F"), name=name, mimetype=mimetype, size=size)
        self._files[stored.id] = stored
        while len(self._files) > FILES_MAX:
            self._files.pop(next(iter(self._files)))
        return stored

    def fill(self, file_id: str, content: bytes) -> bool:
        stored = self._files.get(file_id)
        if stored is None or len(content) != stored.size:
            return False
        stored.content = content
        return True

    def all(self) -> Sequence[StoredFile]:
        """Oldest first."""
        return tuple(self._files.values())

    def get(self, file_id: str) -> StoredFile | None:
        return self._files.get(file_id)

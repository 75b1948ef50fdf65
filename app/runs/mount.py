"""A developer's own directory in place of a thread's saved files: by explicit setting only."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """Where agents work."""

    directory: Path
    is_overlay: bool
    """They get a copy of it, made when their thread begins; False: they work in it."""

    @property
    def sentence(self) -> str:
        """For whoever must not be surprised."""
        if self.is_overlay:
            return f"agents get a copy of {self.directory}, and what they change is told as a patch"
        return f"agents work in {self.directory} itself: what they change or delete there is changed or deleted"


def find_refusal(directory: Path, *, home: Path, state_dir: Path) -> str:
    """Why no agent may work in a directory; empty when one may. All paths are resolved."""
    if not directory.is_dir():
        return f"there is no directory {directory}"
    if directory == Path(directory.anchor):
        return "the whole machine is no work directory; name a directory of one project"
    if home.is_relative_to(directory):
        return f"{directory} holds your home directory, with all that is private in it; name a directory of one project"
    if directory.is_relative_to(state_dir) or state_dir.is_relative_to(directory):
        return f"{directory} and Orion's own state ({state_dir}) must not hold each other"
    return ""

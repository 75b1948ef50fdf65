"""How repositories and their branches are named: one name for each, however it is written; pure."""

from dataclasses import dataclass

from app.runs.broker_ports import RepositoryGrant
from app.runs.session import Session

_OWNER_AND_NAME = 2
_ID_CHARS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadRepository:
    """The repository of one thread."""

    wish: str
    """As people write it."""
    url: str
    directory: str
    branch: str
    """From which it begins; empty = its own."""
    own_branches: tuple[str, ...]
    """Names that its branch may get, the nicest first; a single one is its name."""

    @property
    def own_branch(self) -> str:
        return self.own_branches[0]

    @property
    def grant(self) -> RepositoryGrant:
        """Nothing may be written before its branch has its name: the first one may be another thread's."""
        is_named = len(self.own_branches) == 1
        return RepositoryGrant(url=self.url, branch=self.own_branch if is_named else "")


def canonical_name(wish: str, github_url: str) -> str:
    """`owner/name` for what is at `github_url`, another https URL without a slash at its end."""
    if "://" not in wish:
        return _bare(wish)
    scheme, _, rest = wish.partition("://")
    host, _, path = rest.partition("/")
    url = f"{scheme.lower()}://{host.lower()}/{path}".rstrip("/")
    own = f"{github_url.rstrip('/')}/"
    if url.casefold().startswith(own.casefold()):
        name = _bare(url[len(own) :])
        if len(name.split("/")) == _OWNER_AND_NAME:
            return name
    return url  # with its `.git`, which not every server does without


def repository_key(wish: str, github_url: str) -> str:
    """Equal for all that is the same repository: hosts of code do not tell upper from lower case."""
    return _bare(canonical_name(wish, github_url)).casefold()


def directory_name(wish: str) -> str:
    """The last word of a repository's name, as git would take it; never one that means something else."""
    name = _bare(wish).rpartition("/")[2]
    return "repository" if name in ("", ".", "..") or name.startswith(("-", ".")) else name


def own_branches(session: Session) -> tuple[str, ...]:
    """The branch that a session has; those it may get, the nicest first, when it has none yet.

    The next ones are for a repository where that is another thread's, or in which a branch `orion` leaves none below it.
    """
    if session.repo and session.branch:
        return (session.branch,)
    name, tail = session.name, session.id[-_ID_CHARS:]
    return (f"orion/{name}", f"orion/{name}-{tail}", f"orion-{name}", f"orion-{name}-{tail}")


def _bare(name: str) -> str:
    return name.rstrip("/").removesuffix(".git")

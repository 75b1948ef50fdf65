"""Which settings the processes on one database must have alike, and which of them differ: told by keyed hashes, so that no value is kept."""

import hmac
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, SecretStr

from app.settings.agents import is_for_each_agent, names_for_agents
from app.settings.group import fields_of
from app.settings.orion_toml import ORION_TOML
from app.settings.settings import Settings, groups

OWN: Final = frozenset(
    (
        *("ORION_STATE_DIR", "ORION_CA_BUNDLE", "ORION_HOST", "ORION_PORT", "ORION_KEYRING"),
        *("ORION_LOG_FORMAT", "ORION_LOG_LEVEL", "ORION_OPS_TOKEN", "ORION_WARM_POOL_SIZE"),
        *("DOCKER_HOST", "VERCEL_OIDC_TOKEN"),
        # One database has several addresses, and this secret a check of its own, which knows of a change of it.
        *("ORION_DATABASE_URL", "ORION_OWN_KEYS_SECRET"),
    )
)
"""Of one process or host. All others must agree."""
OF_HEARING: Final = frozenset(("SLACK_SIGNING_SECRET", "SLACK_APP_TOKEN"))
"""Of processes that hear of events: others need not have them."""
HASH_CHARS: Final = 8


def fingerprints(settings: Settings, *, key: bytes, hears: bool) -> Mapping[str, str]:
    """Returns a short hash of each setting that must agree, and of `orion.toml`, by names; of files it is that of what they hold.

    What `orion.toml` says of groups and permissions is left out: it may change while a process runs.

    Args:
        settings: of this process.
        key: of all processes on the database, and of nobody else: secrets are hashed as well.
        hears: this process hears of Slack's events.
    """
    left_out = OWN if hears else OWN | OF_HEARING
    return {
        name: hmac.new(key, f"{name}={_text(value)}".encode(), sha256).hexdigest()[:HASH_CHARS]
        for name, value in _values(settings)
        if name not in left_out
    }


def find_differences(own: Mapping[str, str], others: Mapping[str, Mapping[str, str]]) -> str:
    """Returns which settings are not as in other processes, by the processes' names, as a sentence; empty = all are.

    What one of two does not know, as it has another version or role, is not compared.
    """
    processes: dict[Collection[str], list[str]] = {}
    for process, theirs in sorted(others.items()):
        names = tuple(name for name in own if theirs.get(name, own[name]) != own[name])
        if names:
            processes.setdefault(names, []).append(process)
    return "; ".join(
        f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not as in {', '.join(of_these)}"
        for names, of_these in processes.items()
    )


def _values(settings: Settings) -> Iterator[tuple[str, Any]]:
    for group, kind in groups().items():
        for attribute, info in fields_of(kind).items():
            name, value = info.alias or "", getattr(getattr(settings, group), attribute)
            if is_for_each_agent(name):
                yield from ((own, value.get(agent)) for agent, own in names_for_agents(name))
            elif name == "ORION_MCP_CONFIG_FILE":  # it may refer to the environment
                yield name, settings.mcp_servers
            else:
                yield name, value
    added = {agent: one.digest for agent, one in settings.toml.additions.items()}
    toml = replace(settings.toml, path=None, groups={}, permissions=(), additions={})
    yield str(ORION_TOML), (toml, added)


def _text(value: object) -> str:
    """Returns the same text for equal values, in every process."""
    return json.dumps(value, sort_keys=True, default=_plain)


def _plain(value: Any) -> object:  # noqa: ANN401 - of any setting
    if is_dataclass(value):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    match value:
        case SecretStr():
            return value.get_secret_value()
        case Path():
            return sha256(value.read_bytes()).hexdigest() if value.is_file() else str(value)
        case BaseModel() | Mapping():
            return dict(value)
        case frozenset():
            return sorted(map(_text, value))
        case _:
            return str(value)

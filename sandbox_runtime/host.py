"""What of the host a sandbox may see (the Python in use, CA files, package installers' settings), and as whom commands run."""

import configparser
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.types import EGRESS_PORT, BrokeredNetwork, SandboxSpec, endpoint_of

_PROXY_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")
_CA_NAMES = (
    *("CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS", "PIP_CERT"),
    *("REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE"),
)
_CA_FILE_NAMES = tuple(name for name in _CA_NAMES if name != "SSL_CERT_DIR")
_INSTALLER_PREFIXES = ("PIP_", "UV_", "NPM_CONFIG_")
# These name places on the host that installers write to, or credentials for publishing: neither is of use inside.
_HOST_ONLY = frozenset(
    {
        *("NPM_CONFIG_CACHE", "NPM_CONFIG_GLOBALCONFIG", "NPM_CONFIG_PREFIX"),
        *("NPM_CONFIG_USERCONFIG", "PIP_CACHE_DIR", "PIP_LOG", "PIP_PREFIX", "PIP_ROOT"),
        *("PIP_TARGET", "PIP_USER", "UV_CACHE_DIR", "UV_INSTALL_DIR", "UV_PROJECT_ENVIRONMENT"),
        *("UV_PYTHON", "UV_PYTHON_INSTALL_DIR", "UV_TOOL_BIN_DIR", "UV_TOOL_DIR"),
    }
)
_PUBLISHING = ("UV_PUBLISH_", "NPM_CONFIG__AUTH")
# Source: pip documentation, "Configuration", configuration files on Unix, read 2026-11.
_SYSTEM_PIP_CONFIGS = ("/etc/xdg/pip/pip.conf", "/etc/pip.conf")
_USER_PIP_CONFIGS = (".config/pip/pip.conf", ".pip/pip.conf")
_PIP_PATH_OPTIONS = (
    *("cert", "constraint", "extra-index-url", "find-links", "index-url", "requirement"),
)
_PATH_NAMES = (
    *("PIP_CONFIG_FILE", "PIP_CONSTRAINT", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"),
    *("PIP_INDEX_URL", "UV_CONFIG_FILE", "UV_CONSTRAINT", "UV_DEFAULT_INDEX"),
    *("UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_INDEX", "UV_INDEX_URL", "NPM_CONFIG_CAFILE"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostView:
    """Settings and files that an open sandbox shares with the host, read-only."""

    env: Mapping[str, str] = field(repr=False)
    files: tuple[Path, ...]


def open_view(host_env: Mapping[str, str]) -> HostView:
    """Returns what package installers need of the host: proxies, indexes, their files and CA certificates."""
    env = {name: value for name, value in host_env.items() if _is_shared(name)}
    configs = [Path(path) for path in _SYSTEM_PIP_CONFIGS]
    home = host_env.get("HOME")
    if home:
        user_configs = [Path(home) / path for path in _USER_PIP_CONFIGS]
        configs += user_configs
        # HOME differs inside, so pip must be told where the user's own file is.
        found = next((path for path in user_configs if path.is_file()), None)
        if found is not None:
            env.setdefault("PIP_CONFIG_FILE", str(found))
    if "PIP_CONFIG_FILE" in env:
        configs.append(Path(env["PIP_CONFIG_FILE"]))
    values = [env[name] for name in (*_CA_NAMES, *_PATH_NAMES) if name in env]
    for config in configs:
        values += [str(config), *_pip_config_values(config)]
    paths = {path for value in values for path in _local_paths(value)}
    return HostView(env=env, files=tuple(sorted(path for path in paths if path.exists())))


def ca_env(bundle: Path) -> dict[str, str]:
    """Returns variables by which the common programs find a CA bundle."""
    return dict.fromkeys(_CA_FILE_NAMES, str(bundle))


def egress_env() -> dict[str, str]:
    """Returns variables by which clients find the proxy of a brokered network.

    In both cases and for all schemes: each client obeys some of them alone. Loopback stays direct, as the broker is there. In
    `NO_PROXY`, `[::1]` would make httpx refuse every request. Source: run with the clients' versions of 2026-11.
    """
    url = f"http://127.0.0.1:{EGRESS_PORT}"
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "YARN_HTTP_PROXY", "YARN_HTTPS_PROXY")
    java = " ".join(
        f"-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort={EGRESS_PORT}"
        for scheme in ("http", "https")
    )
    return {
        **{spelling: url for name in names for spelling in (name, name.lower())},
        **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost,::1"),
        "ORION_EGRESS_PORT": str(EGRESS_PORT),
        "NODE_USE_ENV_PROXY": "1",
        "JAVA_TOOL_OPTIONS": java,
    }


def python_prefixes() -> tuple[Path, ...]:
    """Returns where the Python that runs this service is installed, outside of /usr."""
    prefixes = dict.fromkeys((Path(sys.base_prefix), Path(sys.base_exec_prefix)))
    return tuple(prefix for prefix in prefixes if not prefix.is_relative_to("/usr"))


def search_path() -> str:
    """Returns the PATH of every sandbox: the service's own Python first."""
    bins = [str(prefix / "bin") for prefix in python_prefixes()]
    return ":".join([*bins, "/usr/local/bin", "/usr/bin", "/bin"])


def _is_shared(name: str) -> bool:
    upper = name.upper()
    if upper in _HOST_ONLY or upper.startswith(_PUBLISHING):
        return False
    return upper in _PROXY_NAMES or name in _CA_NAMES or upper.startswith(_INSTALLER_PREFIXES)


def _pip_config_values(path: Path) -> Iterator[str]:
    parser = configparser.RawConfigParser()
    with suppress(OSError, configparser.Error):
        parser.read(path, encoding="utf-8")
    for section in parser.sections():
        for option in _PIP_PATH_OPTIONS:
            if parser.has_option(section, option):
                yield parser.get(section, option)


def _local_paths(value: str) -> Iterator[Path]:
    """Yields absolute paths and file URLs among whitespace- or comma-separated words, `name=` before them allowed (uv)."""
    for word in value.replace(",", " ").split():
        text = word.partition("=")[2] if "=file://" in word else word
        if text.startswith("file://"):
            directory = Path(unquote(urlsplit(text).path))
            # The pages of an index link to files beside it (`../../files/...`). Not the whole folder above: that may be
            # a home, or the root of the host.
            yield from (directory, directory.parent / "files")
        elif text.startswith("/"):
            yield Path(text)


def check_network(spec: SandboxSpec, *, drops_root: bool) -> None:
    """Checks that a sandbox can have its network. Raises: SandboxError: CREATE_FAILED, UNSUPPORTED."""
    endpoint = endpoint_of(spec.network)
    if isinstance(spec.network, BrokeredNetwork) and spec.network.headers:
        raise SandboxError(
            SandboxErrorCode.UNSUPPORTED, "only networks of clouds can add headers to requests"
        )
    if not endpoint and not isinstance(spec.network, BrokeredNetwork):
        return
    directory = Path(endpoint).parent
    if not directory.is_absolute() or not directory.is_dir():
        raise SandboxError(
            SandboxErrorCode.CREATE_FAILED, f"no directory of the broker's socket: {directory}"
        )
    if drops_root and not directory.stat().st_mode & 0o001:
        raise SandboxError(
            SandboxErrorCode.CREATE_FAILED,
            f"{directory} must be passable by all users (mode 0711): sandboxes do not run as root",
        )


USER, UID = "agent", 10001
"""Also in Dockerfile, setup.sh and inside/boot.py."""


def user_env(home: str, *, scratch: str | None) -> dict[str, str]:
    """Returns the environment of the user beside PATH; `scratch` as for `cache_env`."""
    own = {"HOME": home, "USER": USER, "LOGNAME": USER, "LANG": "C.UTF-8"}
    return own | cache_env(scratch)


def cache_env(scratch: str | None) -> dict[str, str]:
    """Returns where download caches go while an environment is made, which no snapshot keeps; None = none is made."""
    if scratch is None:
        return {}
    return {"XDG_CACHE_HOME": f"{scratch}/.cache", "npm_config_cache": f"{scratch}/.npm"}

"""The unprivileged user that commands run as, and what they find in their environment. Pure."""

USER, UID = "agent", 10001
"""Also in Dockerfile, setup.sh and inside/boot.py."""


def user_env(home: str, *, scratch: str | None) -> dict[str, str]:
    """Beside PATH; `scratch` as for `cache_env`."""
    own = {"HOME": home, "USER": USER, "LOGNAME": USER, "LANG": "C.UTF-8"}
    return own | cache_env(scratch)


def cache_env(scratch: str | None) -> dict[str, str]:
    """While an environment is made, download caches go to a directory that no snapshot keeps; None = none is made."""
    if scratch is None:
        return {}
    return {"XDG_CACHE_HOME": f"{scratch}/.cache", "npm_config_cache": f"{scratch}/.npm"}

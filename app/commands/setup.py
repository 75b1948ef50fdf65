"""`orion setup vercel|deno`: asks for what is missing, tries it, keeps it, and builds the agent's environment there.

Each line begins with the state that has been reached: need, validating, invalid, building, ready, error.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dotenv import set_key

from app.commands.report import Print
from app.config import Settings, SettingsError, host_environment, load_settings
from app.keyring import KEYRING_FIELDS, KeyringError, write_keyring
from app.log import configure_logging
from app.parts import create_environment
from app.providers import create_named
from app.redaction import Masker
from app.store.sql import open_sqlite_store
from sandbox_runtime.errors import SandboxError

ENV_FILE = Path(".env")
ATTEMPTS = 3
VALIDATE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Something to ask a person for."""

    field: str
    text: str
    is_secret: bool = False
    default: str = ""
    """Proposed; empty = it must be given."""


Ask = Callable[[Question], str]
"""What the person answers, without white space around it."""

_REGION = "orion_sandbox_region"
QUESTIONS: Mapping[str, tuple[Question, ...]] = {
    "vercel": (
        Question(
            field="vercel_token",
            text="Access token (vercel.com, Account Settings, Tokens)",
            is_secret=True,
        ),
        Question(field="vercel_team_id", text="Team id (team_…)"),
        Question(field="vercel_project_id", text="Project id (prj_…)"),
        Question(field=_REGION, text="Region", default="iad1"),
    ),
    "deno": (
        Question(
            field="deno_deploy_token",
            text="Access token of the organisation (console.deno.com, Settings)",
            is_secret=True,
        ),
        Question(field=_REGION, text="Region, ams or ord", default="ord"),
    ),
}


async def set_up(
    provider: str,
    *,
    ask: Ask | None,
    say: Print,
    use_keyring: bool = False,
    env_file: Path = ENV_FILE,
) -> bool:
    """Whether it is ready. `ask` None: nobody is there to answer, so that everything must be set.

    Raises:
        SettingsError: other settings are wrong.
    """
    given: dict[str, str] = {}
    missing: Sequence[Question] = _missing(provider, _load(env_file, given))
    for _ in range(ATTEMPTS):
        if missing and ask is None:
            say(f"need: {', '.join(question.field.upper() for question in missing)}")
            return False
        for question in missing:
            say(f"need: {question.field.upper()}")
            given[question.field] = ask(question) if ask is not None else ""
        if _REGION in given:
            given[_REGION] = _with_other_clouds(provider, env_file, given[_REGION])
        reason = await _find_fault(provider, env_file, given, say=say)
        if not reason:
            break
        say(f"invalid: {reason}")
        missing = () if ask is None else _again(provider, env_file, given)
        if not missing:
            return False
    else:
        return False
    try:
        _keep(given, env_file, use_keyring=use_keyring)
    except (KeyringError, OSError) as exc:
        say(f"error: {exc}")
        return False
    outdone = [name for name, value in given.items() if _environment(name) not in ("", value)]
    if outdone:
        names = ", ".join(name.upper() for name in outdone)
        say(
            f"error: {names}: kept, but another value is set in this environment, and wins: unset it, then say this again"
        )
        return False
    return await _build(provider, env_file, given, say=say)


def _secrets_of(provider: str) -> frozenset[str]:
    return frozenset(question.field for question in QUESTIONS[provider] if question.is_secret)


def _with_other_clouds(provider: str, env_file: Path, region: str) -> str:
    """With the regions that are set for other clouds: there is one setting for all."""
    settings = _load(env_file, {})
    found = (settings.region_of(cloud) for cloud in QUESTIONS if cloud != provider)
    return ",".join(dict.fromkeys((region, *filter(None, found))))


def _environment(name: str) -> str:
    return host_environment().get(name.upper(), "")


def _load(env_file: Path, given: Mapping[str, str | None]) -> Settings:
    # A provider that is chosen already, but not set up yet, would be refused.
    return load_settings(env_file=env_file, given={"orion_sandbox": "auto", **given})


def _missing(provider: str, settings: Settings) -> tuple[Question, ...]:
    if provider == "vercel" and settings.vercel_oidc_token is not None:
        return tuple(
            q
            for q in QUESTIONS[provider]
            if q.field == _REGION and not settings.region_of(provider)
        )
    return tuple(
        q
        for q in QUESTIONS[provider]
        if not (settings.region_of(provider) if q.field == _REGION else getattr(settings, q.field))
    )


def _again(provider: str, env_file: Path, given: Mapping[str, str]) -> Sequence[Question]:
    """All questions, those that are no secret with the answer that there is; of a token that nobody types the region alone."""
    try:
        settings = _load(env_file, given)
    except SettingsError:  # a region that is none, or a token that none can be
        kept = {name: None for name in (_REGION, *_secrets_of(provider)) if name in given}
        settings = _load(env_file, {**given, **kept})
    if provider == "vercel" and settings.vercel_oidc_token is not None:
        return [q for q in QUESTIONS[provider] if q.field in given]
    known = {question.field: getattr(settings, question.field) for question in QUESTIONS[provider]}
    known[_REGION] = settings.region_of(provider)
    return [
        question
        if question.is_secret
        else replace(question, default=known[question.field] or question.default)
        for question in QUESTIONS[provider]
    ]


async def _find_fault(
    provider: str, env_file: Path, given: Mapping[str, str], *, say: Print
) -> str:
    """Why it cannot be used with what is given; empty when it answers to a list of its sandboxes."""
    say("validating: asking for the sandboxes that there are")
    # Ids and regions may be told: a masked region would hide what is wrong with it.
    secret = _secrets_of(provider)
    masker = Masker(tuple(value for name, value in given.items() if name in secret))
    try:
        # As it will be when it is chosen: its region and limits are checked with it.
        settings = load_settings(env_file=env_file, given={"orion_sandbox": provider, **given})
        masker = Masker(settings.secrets)
        async with asyncio.timeout(VALIDATE_TIMEOUT_S), create_named(settings, provider) as opened:
            await opened.list()
    except (SettingsError, SandboxError) as exc:
        return masker.mask(str(exc))
    except TimeoutError:
        return f"no answer within {VALIDATE_TIMEOUT_S:g} s"
    return ""


def _keep(given: Mapping[str, str], env_file: Path, *, use_keyring: bool) -> None:
    if not given and not use_keyring:
        return
    env_file.touch(mode=0o600)
    env_file.chmod(0o600)
    for name, value in given.items():
        if use_keyring and name in KEYRING_FIELDS:
            write_keyring(name, value)
        else:
            set_key(env_file, name.upper(), value, quote_mode="auto")
    if use_keyring:
        set_key(env_file, "ORION_KEYRING", "true", quote_mode="never")


async def _build(provider: str, env_file: Path, given: Mapping[str, str], *, say: Print) -> bool:
    settings = _load(env_file, given)
    masker = Masker(settings.secrets)
    configure_logging(fmt=settings.orion_log_format, level="ERROR", masker=masker)  # told below
    try:
        async with create_named(settings, provider) as opened:
            environment = create_environment(settings, opened)
            await environment.prepare(lambda step: say(f"building: {masker.mask(step)}"))
        if (
            not settings.database_path.exists()
        ):  # so that the other commands find an Orion that nobody has asked yet
            async with open_sqlite_store(settings.database_path):
                pass
    except SandboxError as exc:
        say(f"error: {masker.mask(str(exc))}")
        return False
    say(f"ready: {settings.orion_agent} in {provider}; use it with ORION_SANDBOX={provider}")
    return True

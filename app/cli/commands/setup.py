"""`orion setup vercel|deno`: asks for what is missing, tries it, keeps it, and builds the agent's environment there.

Each line begins with the state that has been reached: checking, need, validating, invalid, building, ready, error.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dotenv import set_key

from app.cli.commands.terminal import Print
from app.compose.factories import create_environment, start_logging
from app.compose.providers import create_named, with_namespace
from app.redaction import Masker
from app.settings.group import SettingsError
from app.settings.sandboxes import token_fields
from app.settings.settings import (
    KeyringError,
    Settings,
    host_environment,
    load_settings,
    write_keyring,
)
from app.store.runs import open_store
from sandbox_runtime.errors import SandboxError
from sandbox_runtime.provider import ProviderSpec
from sandbox_runtime.registry import provider_spec, provider_specs

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


Ask = Callable[[Question], Awaitable[str]]
"""What the person answers, without white space around it."""

_REGION = "orion_sandbox_region"
_LISTED_REGIONS = 5
"""More of them are no question, but a list."""


def _region_question(spec: ProviderSpec) -> Question:
    few = f", {' or '.join(sorted(spec.regions))}" if len(spec.regions) <= _LISTED_REGIONS else ""
    return Question(field=_REGION, text=f"Region{few}", default=spec.regions[0])


QUESTIONS: Mapping[str, tuple[Question, ...]] = {
    spec.name: (
        *(
            Question(field=one.name.lower(), text=one.question, is_secret=one.is_secret)
            for one in spec.settings
            if one.question
        ),
        *([_region_question(spec)] if spec.regions else []),
    )
    for spec in provider_specs()
    if any(one.question for one in spec.settings)
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
    say(f"checking: what is set for {provider}")
    given: dict[str, str] = {}
    missing: Sequence[Question] = _missing(provider, _load(env_file, given))
    for _ in range(ATTEMPTS):
        if missing and ask is None:
            say(f"need: {', '.join(question.field.upper() for question in missing)}")
            return False
        for question in missing:
            say(f"need: {question.field.upper()}")
            given[question.field] = await ask(question) if ask is not None else ""
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
    """Adds the regions that are set for other clouds: there is one setting for all."""
    settings = _load(env_file, {})
    found = (settings.sandbox.region_of(cloud) for cloud in QUESTIONS if cloud != provider)
    return ",".join(dict.fromkeys((region, *filter(None, found))))


def _environment(name: str) -> str:
    return host_environment().get(name.upper(), "")


def _load(env_file: Path, given: Mapping[str, str | None]) -> Settings:
    # A provider that is chosen already, but not set up yet, would be refused.
    return load_settings(env_file=env_file, given={"orion_sandbox": "auto", **given})


def _has_other_credentials(provider: str, settings: Settings) -> bool:
    """Whether it is set up by what nobody types."""
    spec = provider_spec(provider)
    values, asked = (
        settings.sandbox.provider_values(spec),
        {q.field.upper() for q in QUESTIONS[provider]},
    )
    return any(
        asked.isdisjoint(group) and all(values[name] for name in group)
        for group in spec.credentials
    )


def _missing(provider: str, settings: Settings) -> tuple[Question, ...]:
    if _has_other_credentials(provider, settings):
        return tuple(
            q
            for q in QUESTIONS[provider]
            if q.field == _REGION and not settings.sandbox.region_of(provider)
        )
    return tuple(
        q
        for q in QUESTIONS[provider]
        if not (
            settings.sandbox.region_of(provider)
            if q.field == _REGION
            else settings.value_of(q.field)
        )
    )


def _again(provider: str, env_file: Path, given: Mapping[str, str]) -> Sequence[Question]:
    """All questions, those that are no secret with the answer that there is; of a token that nobody types the region alone."""
    try:
        settings = _load(env_file, given)
    except SettingsError:  # a region that is none, or a token that none can be
        kept = {name: None for name in (_REGION, *_secrets_of(provider)) if name in given}
        settings = _load(env_file, {**given, **kept})
    if _has_other_credentials(provider, settings):
        return [q for q in QUESTIONS[provider] if q.field in given]
    known = {question.field: settings.value_of(question.field) for question in QUESTIONS[provider]}
    known[_REGION] = settings.sandbox.region_of(provider)
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
        if use_keyring and name in token_fields():
            write_keyring(name, value)
        else:
            set_key(env_file, name.upper(), value, quote_mode="auto")
    if use_keyring:
        set_key(env_file, "ORION_KEYRING", "true", quote_mode="never")


async def _build(provider: str, env_file: Path, given: Mapping[str, str], *, say: Print) -> bool:
    settings = _load(env_file, given)
    masker = start_logging(settings, level="ERROR")  # told below
    try:
        settings = await with_namespace(settings)
        async with create_named(settings, provider) as opened:
            environment = create_environment(settings, opened)
            await environment.prepare(lambda step: say(f"building: {masker.mask(step)}"))
        # So that the other commands find an Orion that nobody has asked yet.
        if isinstance(settings.database, Path) and not settings.database.exists():
            async with open_store(settings.database):
                pass
    except SandboxError as exc:
        say(f"error: {masker.mask(str(exc))}")
        return False
    say(f"ready: {settings.agents.default} in {provider}; use it with ORION_SANDBOX={provider}")
    return True

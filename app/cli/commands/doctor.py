"""Checks each part that a service needs, by using it; one line each, with its fix."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx

from agent_scripts.adapter import ModelProtocol
from app.aio import open_task_group
from app.cli.commands.egress import (
    NOT_KEPT_FIX,
    count_hosts,
    describe_try,
    describe_untried,
    listed_hosts,
)
from app.cli.commands.probes import (
    TryError,
    clock_skew_s,
    describe_machine,
    export_manifest,
    measure_disk,
    try_address,
    try_app_token,
    try_langfuse,
    try_model,
    try_public_url,
)
from app.compose.adapters import check_own_keys, create_own_keys, fingerprints_of
from app.compose.budgets import find_problems
from app.compose.egress import learn_host_sets, try_hosts
from app.compose.factories import (
    channel_options,
    pool_size,
    slack_options,
)
from app.compose.models import (
    describe_agents,
    missing_for_agent,
    missing_for_serving,
    model_source,
    models_at,
)
from app.compose.policy import run_policy
from app.compose.providers import choose_provider, create_named, create_provider
from app.runs.options import RunOptions
from app.settings.agreement import find_differences
from app.settings.group import SettingsError
from app.settings.orion_toml import ORION_TOML
from app.settings.settings import Settings
from app.slack.api import SlackFault, SlackRefusal
from app.slack.connection import open_slack
from app.slack.manifest import MANIFEST_FIX, find_drift, manifest
from app.store.engine import (
    StateDirectoryBusyError,
    UnreadableStoreError,
    name_of,
    own_state_directory,
)
from app.store.runs import open_store
from app.store.settings import SqlOwnKeyStore
from sandbox_runtime.errors import SandboxError
from sandbox_runtime.registry import provider_spec
from sandbox_runtime.types import Capability

CHECK_TIMEOUT_S = 8.0
"""All parts are tried at once, so this is for all of them."""
MAX_SKEW_S = 60.0
"""Slack refuses what is off by five minutes, and so does Orion."""
LEAST_FREE_BYTES = 1024**3
SLOW_SYNC_S = 0.05
"""Twenty acknowledgements a second are all that a slower disk takes, if each comes alone."""
HTTP_TIMEOUT_S = 5.0
LOST_WITHOUT_BROKER = (
    "without ORION_PUBLIC_URL its network adds the model key to requests by itself: the agent may use any model, "
    "calls and tokens are neither limited nor counted, so no budget may be set, and MCP servers with a url cannot be reached"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One part. `fix` is empty when it works or is not used."""

    part: str
    is_ok: bool
    detail: str
    fix: str = ""

    @property
    def sign(self) -> str:
        """Returns what its line begins with; one that works, but not wholly, begins its detail with `! `."""
        if not self.is_ok:
            return "FAIL"
        return "warn" if self.detail.startswith("! ") else "ok"

    @property
    def row(self) -> Mapping[str, object]:
        """Returns what `--json` prints."""
        return {"part": self.part, "ok": self.is_ok, "detail": self.detail, "fix": self.fix}


Check = Callable[[Settings], Awaitable[str]]
"""Returns a line for people. Raises: _ProblemError."""


class _ProblemError(Exception):
    """A part does not work; carries what to do about it."""

    def __init__(self, detail: str, fix: str) -> None:
        super().__init__(detail)
        self.fix = fix


async def examine(settings: Settings) -> AsyncIterator[Finding]:
    """Yields findings in the order of start-up; all parts are tried at once."""
    checks: tuple[tuple[str, Check], ...] = (
        ("machine", _machine),
        ("settings", _settings),
        ("disk", _disk),
        ("database", _database),
        ("engine", _engine),
        ("sandbox", _sandbox),
        *((f"sandbox {name}", partial(_named_sandbox, name)) for name in _elsewhere(settings)),
        *((("network", _network),) if any(settings.host_lists) else ()),
        *((f"rules of {name}", partial(_rules, words)) for name, words in _ruled(settings)),
        *((("mount", _mount),) if settings.mount is not None else ()),
        ("pool", _pool),
        ("slack", _slack),
        ("events", _events),
        *((("address", _address),) if settings.service.public_url else ()),
        *((("manifest", _manifest),) if settings.slack.config_token is not None else ()),
        ("clock", _clock),
        ("model", _model),
        ("own keys", _own_keys),
        ("agents", _agents),
        ("langfuse", _langfuse),
    )
    async with open_task_group() as group:
        tasks = [group.create_task(_try(part, check, settings)) for part, check in checks]
        for task in tasks:
            yield await task


async def _try(part: str, check: Check, settings: Settings) -> Finding:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return Finding(part=part, is_ok=True, detail=await check(settings))
    except _ProblemError as exc:
        return Finding(part=part, is_ok=False, detail=str(exc), fix=exc.fix)
    except TimeoutError:
        detail = f"no answer within {CHECK_TIMEOUT_S:g} s"
        return Finding(part=part, is_ok=False, detail=detail, fix="see whether it hangs")


async def _machine(settings: Settings) -> str:
    del settings
    return describe_machine()


async def _disk(settings: Settings) -> str:
    directory = settings.service.state_dir
    try:
        disk = await asyncio.to_thread(measure_disk, directory)
    except OSError as exc:
        raise _ProblemError(
            f"{directory}: {exc.strerror or exc}", "free some space, or change its owner"
        ) from exc
    told = f"{directory}: {disk.free_bytes / 1024**3:.1f} GiB free, a synced write takes {disk.sync_s * 1000:.1f} ms"
    if disk.free_bytes < LEAST_FREE_BYTES:
        raise _ProblemError(
            told, "free some space: `orion sandboxes clean`, `orion snapshots rm --old`"
        )
    return f"! {told}; acknowledgements wait for it" if disk.sync_s > SLOW_SYNC_S else told


async def _settings(settings: Settings) -> str:
    lacking, fix = list(missing_for_serving(settings)), "set them in .env (see .env.example)"
    channels: Mapping[str, RunOptions] = {}
    try:
        channels = channel_options(settings, run_policy(settings))
    except SettingsError as exc:
        lacking += str(exc).splitlines()
        fix += f", or change {ORION_TOML}"
    lacking += find_problems(settings)
    if lacking:
        raise _ProblemError("; ".join(lacking), fix)
    added = [
        f"; {ORION_TOML} adds to {name} (files: {len(one.files)}, commands: {len(one.commands)})"
        for name, one in settings.toml.additions.items()
    ]
    sent = [
        f"; {ORION_TOML} gives {name} {', '.join(f'{key}={value}' for key, value in options.said.items())}"
        for name, options in channels.items()
        if options.said
    ]
    return "".join(("complete", *added, *sent))


async def _database(settings: Settings) -> str:
    name = name_of(settings.database)
    try:
        async with open_store(settings.database) as store:
            await store.examine()
            total = sum((await store.counts()).values())
            server = await store.describe_server()
    except UnreadableStoreError as exc:
        raise _ProblemError(exc.reason, exc.fix) from exc
    except OSError as exc:
        raise _ProblemError(
            f"{name}: {exc}", "check that it can be reached, its owner and free space"
        ) from exc
    return f"{name}, {server}, {total} runs"


async def _engine(settings: Settings) -> str:
    if isinstance(settings.database, str):
        return await _processes(settings)
    try:
        with own_state_directory(settings.service.state_dir):
            return "no Orion is running here"
    except StateDirectoryBusyError as exc:
        return str(exc).partition(";")[0]


async def _processes(settings: Settings) -> str:
    try:
        async with open_store(settings.database) as store:
            living = await store.leases.living()
            own = await fingerprints_of(settings, store, hears=True)
            differences = find_differences(own, await store.leases.settings_of_others())
    except UnreadableStoreError as exc:
        raise _ProblemError(exc.reason, exc.fix) from exc
    if not living:
        return "no Orion is running on the database"
    names = (f"{one.name}{'' if one.is_working else ' (without work)'}" for one in living)
    told = f"{len(living)} running, by host and pid: {', '.join(sorted(names))}"
    if differences:
        raise _ProblemError(f"{told}; here {differences}", "give all the same, and start them anew")
    return told


async def _sandbox(settings: Settings) -> str:
    choice = await choose_provider(settings)
    try:
        async with create_provider(settings, choice) as provider:
            finding = await provider.probe()
            because = "" if choice.reason == finding else f" ({choice.reason})"
            lost = ""
            if Capability.REMOTE in provider.capabilities and not settings.service.public_url:
                lost = f"; ! {LOST_WITHOUT_BROKER}"
            return f"{provider.name}{because}: {finding}{lost}"
    except SandboxError as exc:
        raise _ProblemError(str(exc), provider_spec(choice.name).fix) from exc


def _ruled(settings: Settings) -> Iterator[tuple[str, Sequence[str]]]:
    """Yields what there are rules of, with the words of each."""
    toml = settings.toml
    if toml.approvals:
        yield "approvals", [rule.words for rule in toml.approvals]
    if toml.permissions:
        yield "permissions", [rule.words for rule in toml.permissions]


async def _rules(words: Sequence[str], settings: Settings) -> str:
    """Names those that have never decided: one with a mistake may do nothing."""
    try:
        async with open_store(settings.database) as store:
            hits = await store.approvals.hits()
    except (UnreadableStoreError, OSError) as exc:
        raise _ProblemError(f"not read: {exc}", "see the line of the database") from exc
    unused = [one for one in words if not hits.get(one)]
    told = f"{len(words)} rules"
    return f"{told}; never decided: {'; '.join(unused)}" if unused else told


async def _network(settings: Settings) -> str:
    fix = "`orion egress check` shows each host"
    try:
        settings = await learn_host_sets(settings)
        async with create_provider(settings, await choose_provider(settings)) as provider:
            listed = listed_hosts(settings)
            canaries, tried = await try_hosts(settings, provider, listed)
    except SettingsError as exc:
        raise _ProblemError(str(exc), "change ORION_EGRESS_HOSTS or orion.toml") from exc
    except SandboxError as exc:
        raise _ProblemError(str(exc), fix) from exc
    if reached := [describe_try(one) for one in canaries if one.is_reached]:
        raise _ProblemError(f"a host on no list is reached: {'; '.join(reached)}", NOT_KEPT_FIX)
    failed = [one.host for one in tried if not one.is_reached]
    found = f"{count_hosts(len(tried))} tried from a sandbox; {canaries[0].host}, on no list, is not reached"
    if failed:
        found = f"! {found}; nor {'is' if len(failed) == 1 else 'are'} {', '.join(failed)}; {fix}"
    return "; ".join(filter(None, (found, describe_untried(listed))))


def _elsewhere(settings: Settings) -> Sequence[str]:
    """Providers that channels name besides the default one's setting."""
    policy = run_policy(settings)
    try:
        words = {
            options.sandbox
            for options in channel_options(settings, policy).values()
            if options.sandbox
        }
    except SettingsError:  # told with the settings
        return ()
    return sorted({policy.sandboxes[word] for word in words} - {settings.sandbox.provider})


async def _named_sandbox(name: str, settings: Settings) -> str:
    try:
        async with create_named(settings, name) as provider:
            return await provider.probe()
    except SandboxError as exc:
        raise _ProblemError(str(exc), provider_spec(name).fix) from exc


async def _mount(settings: Settings) -> str:
    return f"! {settings.mount.sentence}" if settings.mount else "not set"


async def _pool(settings: Settings) -> str:
    size = pool_size(settings, is_billed=False)
    if settings.sandbox.warm_pool_size is None:
        clouds = "none at clouds (ORION_WARM_POOL_SIZE is not set)"
    else:
        clouds = f"{pool_size(settings, is_billed=True)} at clouds"
    wanted = f"sandboxes prepared: {size} on this machine, {clouds}"
    try:
        found = (await _readiness(settings) or {})["pool"]["detail"]
    except (KeyError, TypeError):
        return wanted
    return f"{wanted}; {found}"


async def _readiness(settings: Settings) -> Mapping[str, Any] | None:
    """Returns what the Orion of these settings on this machine says of its parts; None = there is none."""
    url = f"http://{settings.service.host}:{settings.service.port}/readyz"
    try:
        async with httpx.AsyncClient(timeout=HTTP_TIMEOUT_S, trust_env=False) as http:
            told = (await http.get(url)).json()
    except (httpx.HTTPError, ValueError):
        return None
    return told if isinstance(told, dict) else None


async def _slack(settings: Settings) -> str:
    if settings.slack.bot_token is None:
        raise _ProblemError("not checked: no bot token", "set SLACK_BOT_TOKEN")
    try:
        async with open_slack(slack_options(settings)) as slack:
            identity = await slack.identify()
            lacking = slack.lacking
    except SlackFault as exc:
        is_refused = isinstance(exc, SlackRefusal)
        fix = "check the token, and that the app is installed in the workspace"
        fix = fix if is_refused else "check the network, and the proxy if there is one"
        raise _ProblemError(f"auth.test: {exc}", fix) from exc
    found = f"bot user {identity.bot_user_id} in workspace {identity.team_id}"
    if lacking:  # no reason not to start: the rest works
        off = "; ".join(f"{feature} (lacks {scope})" for scope, feature in lacking.items())
        return f"! {found}; its manifest is an old one, so these are off: {off}; {MANIFEST_FIX}"
    return f"{found}; all scopes are there{await _unheard(settings)}"


async def _unheard(settings: Settings) -> str:
    """Returns what a bot token cannot ask Slack: whether the app is told that somebody opens it; empty when it was."""
    try:
        async with open_store(settings.database) as store:
            if await store.welcomes.count():
                return ""
    except (UnreadableStoreError, OSError):  # told with the database
        return ""
    return "; nobody has opened Orion in Slack yet (if somebody has, its manifest lacks app_home_opened)"


async def _events(settings: Settings) -> str:
    """Tries the way on which Slack's events come."""
    is_socket = settings.slack.app_token is not None
    try:
        if is_socket:
            return await try_app_token(settings)
        if settings.slack.signing_secret is None:
            raise _ProblemError(
                "neither of the two ways is set", "set SLACK_APP_TOKEN, or SLACK_SIGNING_SECRET"
            )
        if not settings.service.public_url:
            return "over HTTP; not tried: ORION_PUBLIC_URL does not say where Slack delivers"
        return await try_public_url(settings)
    except TryError as exc:
        if not is_socket and await _readiness(settings) is None:
            return f"! {exc}; no Orion runs on this machine yet"
        fix = (
            "make an app-level token with connections:write"
            if is_socket
            else "let the proxy lead /slack/events of ORION_PUBLIC_URL here, and check SLACK_SIGNING_SECRET"
        )
        raise _ProblemError(str(exc), fix) from exc


async def _address(settings: Settings) -> str:
    """Tries the way on which sandboxes in clouds reach their models, and people the operators' page."""
    try:
        return await try_address(settings)
    except TryError as exc:
        if await _readiness(settings) is None:
            return f"! {exc}; no Orion runs on this machine yet"
        raise _ProblemError(str(exc), "let the proxy lead all of ORION_PUBLIC_URL here") from exc


async def _manifest(settings: Settings) -> str:
    """Compares what the app has with what `orion manifest` says."""
    public_url, is_socket = settings.service.public_url, settings.slack.app_token is not None
    try:
        wanted = manifest(public_url=public_url, socket_mode=is_socket)
        drift = find_drift(wanted, await export_manifest(settings))
    except ValueError as exc:
        raise _ProblemError(str(exc), "set ORION_PUBLIC_URL, or SLACK_APP_TOKEN") from exc
    except TryError as exc:
        fix = "see what is said of Slack"
        if str(exc) == "bots.info: missing_scope":  # so it is an old one
            fix = MANIFEST_FIX
        elif str(exc).startswith("apps.manifest.export: "):
            fix = "make a new SLACK_CONFIG_TOKEN at api.slack.com/apps, or unset it: it is for this alone"
        raise _ProblemError(f"not compared: {exc}", fix) from exc
    if drift:
        raise _ProblemError(f"it differs: {'; '.join(drift)}", MANIFEST_FIX)
    return "the app has what `orion manifest` says"


async def _clock(settings: Settings) -> str:
    try:
        skew_s = await clock_skew_s(settings)
    except TryError as exc:
        raise _ProblemError(str(exc), "check the network, and the proxy if there is one") from exc
    if abs(skew_s) > MAX_SKEW_S:
        raise _ProblemError(
            f"{abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} Slack's",
            "set it: Slack's signatures are good for five minutes",
        )
    return "as Slack's"


async def _model(settings: Settings) -> str:
    if missing := missing_for_agent(settings, settings.agents.default):
        raise _ProblemError("no key", f"set what is missing: {missing}")
    told, refused = [], []
    for protocol in ModelProtocol:
        source = model_source(settings, protocol)
        try:
            said = (
                await try_model(protocol, source, models=models_at(settings, protocol))
                if source
                else _without_key(settings)
            )
            told.append(f"{protocol.value}: {said}")
        except TryError as exc:
            refused.append(f"{protocol.value}: {exc}")
    if refused:
        fix = "check the key and the address of each, and what ORION_MODEL and the like name"
        raise _ProblemError("; ".join((*refused, *told)), fix)
    return "; ".join(told)


def _without_key(settings: Settings) -> str:
    return "people's own keys alone" if settings.models.own_keys_secret else "no key"


async def _own_keys(settings: Settings) -> str:
    if settings.models.own_keys_secret is None and not isinstance(settings.database, str):
        return "not taken"
    lost = 0
    try:
        async with open_store(settings.database) as store:
            await check_own_keys(settings, store, adopts=False)
            keys = create_own_keys(settings, store)
            if isinstance(keys, SqlOwnKeyStore):
                lost = await keys.count_unreadable()
    except UnreadableStoreError as exc:
        raise _ProblemError(exc.reason, exc.fix) from exc
    if lost > 0:
        raise _ProblemError(
            f"{lost} of people's keys were sealed with another ORION_OWN_KEYS_SECRET",
            "put that one behind this one, with a comma, or let their people give them anew",
        )
    return (
        "not taken" if settings.models.own_keys_secret is None else "taken, and all can be opened"
    )


async def _agents(settings: Settings) -> str:
    return describe_agents(settings)


async def _langfuse(settings: Settings) -> str:
    if settings.langfuse.public_key is None or settings.langfuse.secret_key is None:
        return "not set: no traces leave"
    try:
        return await try_langfuse(settings)
    except TryError as exc:
        raise _ProblemError(str(exc), "check LANGFUSE_BASE_URL and the two Langfuse keys") from exc

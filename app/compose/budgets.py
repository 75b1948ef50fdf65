"""Prices and budgets from the settings and `orion.toml`, checked against each other."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from decimal import Decimal

from agent_scripts.registry import agent_spec
from app.aio import retry_store
from app.compose.models import asks_by_itself, is_judging, needs_own_key, usable_agents
from app.compose.providers import usable_clouds
from app.log import get_logger
from app.permissions.rules import PermissionRule, Permissions
from app.runs.budget import Budgets, Ledger, Prices, SpendingStore, to_micro
from app.runs.model import Clock
from app.settings.group import SettingsError
from app.settings.orion_toml import ORION_TOML
from app.settings.settings import Settings

LAST_WRITE_S = 10.0
"""For a database that is away while a service ends; what it does not take then is lost: the last calls' cost."""

_log = get_logger(__name__)


@asynccontextmanager
async def open_ledger(
    settings: Settings, store: SpendingStore, clock: Clock, *, permissions: Permissions
) -> AsyncIterator[Ledger]:
    """Opens what counts, and keeps to the budgets; all of it is written at the end, if the database takes it within `LAST_WRITE_S`.

    Raises:
        SettingsError: a budget cannot be kept.
    """
    if problems := find_problems(settings):
        raise SettingsError("\n".join(problems))
    ledger = Ledger(
        prices=Prices(settings.toml.prices),
        budgets=load_budgets(settings),
        store=store,
        clock=clock,
        is_shared=isinstance(settings.database, str),
        permissions=permissions,
    )
    await ledger.load()
    try:
        yield ledger
    finally:
        try:
            async with asyncio.timeout(LAST_WRITE_S):
                await retry_store(ledger.write)
        except OSError as exc:
            _log.warning("budget.not_written", reason=str(exc) or f"not within {LAST_WRITE_S:g} s")


def load_budgets(settings: Settings) -> Budgets:
    """Returns the budgets of the settings and `orion.toml`, in micro-dollars."""
    return Budgets(
        run=_micro(settings.budgets.run_usd),
        user_day=_micro(settings.budgets.user_day_usd),
        channel_day=_micro(settings.budgets.channel_day_usd),
        day=_micro(settings.budgets.day_usd),
        channels={
            name: to_micro(dollars) for name, dollars in settings.toml.channel_budgets.items()
        },
        judgements_day=settings.follow_ups.follow_up_calls_day if is_judging(settings) else None,
    )


def find_problems(
    settings: Settings, rules: Sequence[PermissionRule] | None = None
) -> Sequence[str]:
    """Returns why the budgets that are set cannot be kept, as lines. `rules`: that take the place of those of the settings, whose prices hold on."""
    when = "" if rules is None else " (as Orion was started; prices count from a start on)"
    rules = settings.toml.permissions if rules is None else rules
    named = [f"{one.name}.budget_day_usd" for one in rules if one.budget_day is not None]
    if replace(load_budgets(settings), judgements_day=None).is_set:
        named.insert(0, "a budget")
    if not named:
        return ()
    holes = _find_holes(settings, Prices(settings.toml.prices))
    return [f"{' and '.join(named)} cannot be kept: {hole}{when}" for hole in holes]


def _find_holes(settings: Settings, prices: Prices) -> Iterator[str]:
    """Yields the calls that a budget would not see: what is left out of it would be without a limit."""
    if not settings.service.public_url:
        for cloud in usable_clouds(settings):
            yield f"at {cloud} no call is counted without ORION_PUBLIC_URL; set it, or take the credentials of {cloud} out of the settings"
    judge = settings.follow_ups.follow_up_model
    if is_judging(settings) and prices.find(judge) is None:
        yield f'{ORION_TOML} has no price for {judge}, which judges replies: [prices."{judge}"]'
    for agent, entry in usable_agents(settings).items():
        if asks_by_itself(agent):
            yield f"the agent {agent} asks its models by itself, past Orion; take its key out of the settings"
            continue
        if needs_own_key(settings, agent):
            continue  # whoever asks it pays
        if not entry.models and prices.find("") is None:
            yield f'people may ask {agent} for any model; name them in ORION_MODELS_{agent.upper()}, or give {ORION_TOML} a price for all others: [prices."*"]'
        helpers = agent_spec(agent).helper_models
        own = [entry.model_id(model) for model in (entry.model, *entry.models)]
        for model in dict.fromkeys((*own, *helpers)):
            if prices.find(model) is None:
                yield f'{ORION_TOML} has no price for {model}, which {agent} may ask: [prices."{model}"]'


def _micro(dollars: Decimal | None) -> int | None:
    return None if dollars is None else to_micro(dollars)

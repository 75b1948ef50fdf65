"""Prices and budgets from the settings and `orion.toml`, checked against each other."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal

from agent_scripts.registry import create_adapter
from app.additions import load_channel_budgets, load_prices
from app.agents import usable_agents
from app.config import Settings, SettingsError
from app.model_access import asks_by_itself, needs_own_key
from app.orion_toml import ORION_TOML
from app.providers import usable_clouds
from app.runs.budgets import Budgets, Ledger, SpendingStore
from app.runs.costs import Prices, to_micro
from app.runs.patience import patiently
from app.runs.ports import Clock


@asynccontextmanager
async def open_ledger(
    settings: Settings, store: SpendingStore, clock: Clock
) -> AsyncIterator[Ledger]:
    """What counts, and keeps to the budgets; all of it is written at the end.

    Raises:
        SettingsError: `orion.toml` is wrong, or a budget cannot be kept.
    """
    if problems := find_problems(settings):
        raise SettingsError("\n".join(problems))
    ledger = Ledger(
        prices=Prices(load_prices()), budgets=load_budgets(settings), store=store, clock=clock
    )
    await ledger.load()
    try:
        yield ledger
    finally:
        await patiently(ledger.write)


def load_budgets(settings: Settings) -> Budgets:
    """Raises: SettingsError: `orion.toml` is wrong."""
    return Budgets(
        run=_micro(settings.orion_budget_run_usd),
        user_day=_micro(settings.orion_budget_user_day_usd),
        channel_day=_micro(settings.orion_budget_channel_day_usd),
        day=_micro(settings.orion_budget_day_usd),
        channels={name: to_micro(dollars) for name, dollars in load_channel_budgets().items()},
    )


def find_problems(settings: Settings) -> Sequence[str]:
    """Why the budgets that are set cannot be kept, as lines.

    Raises:
        SettingsError: `orion.toml` is wrong.
    """
    if not load_budgets(settings).is_set:
        return ()
    holes = _find_holes(settings, Prices(load_prices()))
    return [f"a budget cannot be kept: {hole}" for hole in holes]


def _find_holes(settings: Settings, prices: Prices) -> Iterator[str]:
    """Calls that a budget would not see: what is left out of it would be without a limit."""
    if not settings.orion_public_url:
        for cloud in usable_clouds(settings):
            yield f"at {cloud} no call is counted without ORION_PUBLIC_URL; set it, or take the credentials of {cloud} out of the settings"
    for agent, offer in usable_agents(settings).items():
        if asks_by_itself(agent):
            yield f"the agent {agent} asks its models by itself, past Orion; take its key out of the settings"
            continue
        if needs_own_key(settings, agent):
            continue  # whoever asks it pays
        if not offer.models and prices.find("") is None:
            yield f'people may ask {agent} for any model; name them in ORION_MODELS_{agent.upper()}, or give {ORION_TOML} a price for all others: [prices."*"]'
        helpers = create_adapter(agent).helper_models
        own = [offer.model_id(model) for model in (offer.model, *offer.models)]
        for model in dict.fromkeys((*own, *helpers)):
            if prices.find(model) is None:
                yield f'{ORION_TOML} has no price for {model}, which {agent} may ask: [prices."{model}"]'


def _micro(dollars: Decimal | None) -> int | None:
    return None if dollars is None else to_micro(dollars)

"""Settings of what model calls may cost. Part of `config_fields.py`."""

from decimal import Decimal

from pydantic import Field
from pydantic_settings import BaseSettings

_NEEDS = "Needs prices in orion.toml for all models that may be asked."
MAX_USD = 1_000_000


class BudgetFields(BaseSettings):
    """Names in the environment are the upper-case field names. Dollars; a day is one of UTC."""

    orion_budget_run_usd: Decimal | None = Field(
        None, gt=0, le=MAX_USD, description=f"What one request may cost. {_NEEDS}"
    )
    orion_budget_user_day_usd: Decimal | None = Field(
        None, gt=0, le=MAX_USD, description="What a person's requests may cost in a day."
    )
    orion_budget_channel_day_usd: Decimal | None = Field(
        None,
        gt=0,
        le=MAX_USD,
        description="The same for a channel; orion.toml may give one another budget.",
    )
    orion_budget_day_usd: Decimal | None = Field(
        None, gt=0, le=MAX_USD, description="What all requests may cost in a day."
    )

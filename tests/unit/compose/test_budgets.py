"""Budgets that cannot be kept are refused at the start."""

from pathlib import Path

import pytest

from app.compose.budgets import find_problems
from app.compose.models import missing_for_serving
from app.settings.settings import load_settings

PRICES = '[prices."*"]\ninput = 3\noutput = 15\ncache_read = 0.3\ncache_write = 3.75\n'


@pytest.fixture(autouse=True)
def _all_priced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orion.toml").write_text(PRICES)


def _problems(**given: object) -> str:
    settings = {"anthropic_api_key": "sk-ant-x", "orion_budget_day_usd": "1", **given}
    return "\n".join(find_problems(load_settings(env_file=None, given=settings)))


@pytest.mark.parametrize(
    ("cloud", "given"),
    [
        ("deno", {"orion_sandbox": "deno", "deno_deploy_token": "ddo_x"}),
        ("deno", {"orion_sandbox": "docker", "deno_deploy_token": "ddo_x"}),
        ("vercel", {"vercel_oidc_token": "x"}),
    ],
    ids=["chosen", "on request", "auto"],
)
def test_a_cloud_without_a_broker_holds_no_budget(cloud: str, given: dict[str, object]) -> None:
    """Nothing is counted there, whoever chose it; with an address of Orion's it is."""
    assert f"a budget cannot be kept: at {cloud} no call is counted" in _problems(**given)
    assert _problems(**given, orion_public_url="https://orion.example") == ""
    assert _problems(**given, orion_budget_day_usd=None) == ""


def test_this_machine_has_a_broker() -> None:
    """No address is needed here."""
    assert _problems(orion_sandbox="local") == ""


def test_the_model_that_judges_replies_has_a_price(tmp_path: Path) -> None:
    """Where a budget is set; without one its calls are bounded by their number."""
    named = PRICES.replace('"*"', '"claude-*"')
    (tmp_path / "orion.toml").write_text(named)
    asked = {"orion_follow_ups": "judged", "orion_follow_up_model": "small-1"}
    asked["orion_models_anthropic"] = "claude-haiku-5-5"
    assert "no price for small-1, which judges replies" in _problems(**asked)
    assert "judges" not in _problems(**asked | {"orion_follow_ups": "two-party"})
    assert _problems(**asked, orion_budget_day_usd=None) == ""


@pytest.mark.parametrize(
    ("budget", "named"),
    [(None, "permissions[1].budget_day_usd"), ("1", "a budget and permissions[1].budget_day_usd")],
)
def test_a_rules_budget_is_refused_as_any_other(
    tmp_path: Path, budget: str | None, named: str
) -> None:
    """By the rule's name; with a price it is kept."""
    rules = '[[permissions]]\nwho = "U012"\nuse = true\n[[permissions]]\nwho = "everyone"\nbudget_day_usd = 3\n'
    (tmp_path / "orion.toml").write_text(rules)
    told = _problems(orion_budget_day_usd=budget)
    assert f"{named} cannot be kept: orion.toml has no price for" in told
    (tmp_path / "orion.toml").write_text(rules + PRICES)
    assert _problems(orion_budget_day_usd=budget) == ""


def test_a_model_that_shall_judge_needs_a_key() -> None:
    """Told at the start, by the name of the setting."""
    given = {"openai_api_key": "sk-1", "orion_agent": "codex", "orion_follow_ups": "judged"}
    missing = missing_for_serving(load_settings(env_file=None, given=given))
    assert any("model that judges replies" in line for line in missing)

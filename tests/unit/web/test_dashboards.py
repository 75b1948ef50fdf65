"""The dashboard and the alert rules ask for figures that there are, by labels that these have."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from app.metrics import Meters
from app.runs.testing import Outcome, RunState
from app.store.memory import MemoryRunStore
from app.web.health import Metrics
from tests.building import make_run
from tests.unit.web.test_routes import CALLS, FOLLOW_UPS, POOL

DASHBOARD, ALERTS = Path("container/grafana.json"), Path("container/alerts.yaml")
NAME = re.compile(r"\borion_\w+")
GROUPED = re.compile(r"by \(([\w, ]+)\)")
MATCHED = re.compile(r"[{,]\s*(\w+)\s*(?:=~|!~|!=|=)")


def panels() -> Iterator[tuple[str, str, str]]:
    """Title, question and legend of each line."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]


def rules() -> Iterator[tuple[str, str, str]]:
    for rule in yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]:
        yield rule["alert"], rule["expr"], rule["annotations"]["summary"]


QUESTIONS = [*panels(), *rules()]


@pytest.fixture
async def labels() -> Mapping[str, set[str]]:
    """Labels of each figure, by the names of its samples."""
    store, meters = MemoryRunStore(), Meters()
    run = make_run()
    await store.add(run)
    await store.update(
        run.id, state=RunState.FAILED, outcome=Outcome(state=RunState.FAILED), delivery="failed(x)"
    )
    meters.acknowledged(200, 0.1)
    meters.placed(0.1)
    meters.begun(0.1)
    meters.first_token("claude", 0.1)
    meters.ended(agent="claude", provider="local", outcome="failed", code="INTERNAL", seconds=1)
    meters.slack_called("chat.postMessage", "limited")
    metrics = Metrics(
        meters,
        store=store,
        export_failures=lambda: 1,
        pools=lambda: [POOL],
        calls=CALLS,
        follow_ups=FOLLOW_UPS,
    )
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families((await metrics.render()).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize(
    ("title", "expr", "text"),
    QUESTIONS,
    ids=[f"{one[0]}-{number}" for number, one in enumerate(QUESTIONS)],
)
async def test_it_asks_for_what_there_is(
    title: str, expr: str, text: str, labels: Mapping[str, set[str]]
) -> None:
    names = NAME.findall(expr)
    assert names, title
    known = set.union(*(labels.get(name, {"nothing of that name"}) for name in names))
    assert "nothing of that name" not in known, names
    asked = set(MATCHED.findall(expr))
    grouped = {one.strip() for some in GROUPED.findall(expr) for one in some.split(",")}
    shown = set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", text))
    assert asked | grouped <= known, (title, asked | grouped, known)
    assert shown <= grouped, (title, shown)


async def test_all_figures_are_shown_or_watched(labels: Mapping[str, set[str]]) -> None:
    """But for two that only explain others."""
    asked = {name for _, expr, _ in QUESTIONS for name in NAME.findall(expr)}
    families = {re.sub(r"_(bucket|count|sum|created|total)$", "", name) for name in labels}
    shown = {re.sub(r"_(bucket|count|sum|created|total)$", "", name) for name in asked}
    assert families - shown == {"orion_pool_taken", "orion_pool_missed", "orion_pool_failed"}

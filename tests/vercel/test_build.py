"""What the real `vercel build` makes of this repository."""

import pytest

from tests.vercel.deployment import Deployment

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

HEARS, WORKS = "fastapi", "_py_subscribers/app-subscriber__advance"
MAX_MB = 150.0
PACKAGES = {"app", "sandbox_runtime", "agent_scripts"}


def test_the_two_functions(deployment: Deployment) -> None:
    """One hears all requests for up to five minutes; one works for messages, and nobody else reaches it by a route of its own."""
    hears, works = deployment.functions[HEARS].config, deployment.functions[WORKS].config
    assert set(deployment.functions) == {HEARS, WORKS}
    assert {hears["runtime"], works["runtime"]} == {"python3.12"}
    assert hears["maxDuration"] == 300
    assert "experimentalTriggers" not in hears
    assert works["experimentalTriggers"] == [
        {"type": "queue/v2beta", "topic": "orion-runs", "consumer": "app_Dsubscriber_Dadvance"}
    ]
    handler = deployment.functions[HEARS].directory / "vc__handler__python.py"
    assert '"__VC_HANDLER_ENTRYPOINT": "app/main.py"' in handler.read_text()
    assert deployment.config["crons"] == [{"path": "/ops/sweep", "schedule": "0 5 * * *"}]


@pytest.mark.parametrize("name", [HEARS, WORKS])
def test_what_is_in_a_function(deployment: Deployment, name: str) -> None:
    """The packages once, compiled, with what they copy into sandboxes; no tests, papers, command line or playground."""
    function = deployment.functions[name]
    assert function.size_mb <= MAX_MB
    own = {file for file in function.files if not file.startswith("_vendor/")}
    folders = {file.partition("/")[0] for file in own if "/" in file}
    assert folders - {"_vc_queue_handlers"} == PACKAGES
    assert not [file for file in own if file.startswith(("app/cli", "app/playground"))]
    assert not [
        file for file in function.files if file.startswith(("_vendor/app/", "_vendor/tests/"))
    ]
    assert "agent_scripts/inside/supervisor.py" in own
    for module in (
        "app/main",
        "app/subscriber",
        "_vendor/sqlalchemy/__init__",
        "_vendor/psycopg/__init__",
    ):
        folder, _, stem = module.rpartition("/")
        assert f"{folder}/__pycache__/{stem}.cpython-312.pyc" in function.files
    assert {"_vendor/vercel/sandbox/__init__.py", "_vendor/vercel/queue/__init__.py"} <= set(
        function.files
    )
    tools = ("pytest", "mypy", "hypothesis", "playwright", "anthropic", "rich", "typer", "uvloop")
    assert not [tool for tool in tools if f"_vendor/{tool}/__init__.py" in function.files]

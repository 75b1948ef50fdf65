"""`orion sandboxes conformance`: the contract checked by whoever runs Orion, on their own machine."""

from pathlib import Path

import pytest

from tests.e2e.orion_process import run_cli, scrubbed_environment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


@pytest.mark.long
async def test_every_fact_is_told_and_nothing_stays(tmp_path: Path) -> None:
    """The quickest provider: a line for each fact, a sum, and the service's own directory untouched."""
    environment = scrubbed_environment() | {
        "ORION_STATE_DIR": str(tmp_path / "state"),
        "ORION_SANDBOX": "local",
        "ORION_LOCAL_ISOLATION": "none",
    }
    code, output = await run_cli("sandboxes", "conformance", environment=environment)
    *facts, last = output.splitlines()[1:]
    assert code == 0, output
    assert len(facts) >= 55
    assert all(line.startswith(("ok  ", "lack")) for line in facts)
    assert f"{len(facts)} facts: " in last
    assert ", 0 broken, " in last
    assert list((tmp_path / "state").iterdir()) == []


async def test_a_provider_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    """No traceback, and exit code 1."""
    environment = scrubbed_environment() | {
        "ORION_STATE_DIR": str(tmp_path / "state"),
        "DOCKER_HOST": f"unix://{tmp_path}/none.sock",
    }
    code, output = await run_cli(
        *("sandboxes", "conformance", "--provider", "docker"), environment=environment
    )
    assert code == 1
    assert output.startswith("FAIL ")
    assert len(output.splitlines()) == 1

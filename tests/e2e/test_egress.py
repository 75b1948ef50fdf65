"""The named network in the whole service: what is on the list is reached, what is not is refused, told and counted."""

import json

import pytest

from tests.e2e.conftest import OpenOrion
from tests.e2e.harness import open_world, text_of

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(180)]

INSTALL = "python3 -m venv v && v/bin/pip install -q six && v/bin/python -c 'import six; print(six.__name__ * 2)'"
REFUSED = "curl -sS https://elsewhere.example/ 2>&1"


async def test_an_install_and_a_refusal(start_orion: OpenOrion) -> None:
    """pip installs from where this machine's own does; another host is named below the answer, in the record and in the trace."""
    async with (
        open_world() as world,
        start_orion(world, ORION_EGRESS_HOSTS="private:@pip") as stage,
    ):
        ts = await stage.client.say(f"@Orion run: {INSTALL}; {REFUSED}; {REFUSED}")
        told = text_of(await stage.answer(ts, timeout_s=120))
        assert "sixsix" in told
        assert "Reached for and refused: `elsewhere.example:443` (2 times)" in told
        assert "ORION_EGRESS_HOSTS" in told
        code, shown = await stage.cli("runs", "show", stage.run_id(ts), "--json")
        assert code == 0, shown
        hosts = {one["host"]: one for one in json.loads(shown)["hosts"]}
        refused = hosts.pop("elsewhere.example:443")
        assert (refused["connections"], refused["refusals"]) == (0, 2)
        assert hosts
        assert all(one["received_bytes"] > 1000 for one in hosts.values())
        tree = await world.whole_trace(str((await stage.record(ts)).trace_id))
        assert "elsewhere.example:443" in str(tree)
        asked = (await world.model_requests())[0]
        assert "by the proxy that the environment names" in str(asked)


@pytest.mark.long
async def test_without_a_list_all_is_refused(start_orion: OpenOrion) -> None:
    """At once, and told: no client waits for a network that is not there."""
    async with open_world() as world, start_orion(world) as stage:
        told = await stage.ask(f"@Orion run: {REFUSED}")
        assert "CONNECT tunnel failed, response 403" in told
        assert "Reached for and refused: `elsewhere.example:443`." in told


@pytest.mark.long
async def test_the_list_is_tried_from_inside(start_orion: OpenOrion) -> None:
    """By `orion egress check`, host by host, and by doctor: each with one that must be refused."""
    async with (
        open_world() as world,
        start_orion(
            world, ORION_EGRESS_HOSTS="private:@pip nowhere.invalid *.wild.invalid"
        ) as stage,
    ):
        code, said = await stage.cli("egress", "check")
        assert code == 0, said
        assert "  private:@pip = private:" in said
        assert (
            "example.com:443 refused: 403, example.com:443: is not on the list of hosts (on no list)"
            in said
        )
        assert said.count(":443 reached") >= 1
        assert "nowhere.invalid:443 failed: 502, nowhere.invalid:443: cannot be looked up" in said
        assert "  not tried, as a star names no host: *.wild.invalid\n" in said
        assert said.splitlines()[-1].startswith("! Of ")
        _, said = await stage.cli("doctor")
        line = next(line for line in said.splitlines() if line.split()[1:2] == ["network"])
        assert "example.com:443, on no list, is not reached" in line
        assert "; nor is nowhere.invalid:443; " in line
        assert "; not tried, as a star names no host: *.wild.invalid" in line

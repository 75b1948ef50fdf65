"""An agent that looks for secrets and ways out, in both kinds of sandboxes: it finds nothing, and gets nowhere."""

import asyncio
import base64
import json
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.brokerage.registry import create_token, load_signing_key
from app.playground.slack.types import FakeSlackConfig, JsonObject
from app.playground.traces.receiver import PLAYGROUND_SECRET_KEY
from app.runs.testing import ModelGrant, RunId
from tests.e2e.canary import run_inside
from tests.e2e.docker_world import open_docker_orion, prepared_image
from tests.e2e.harness import Stage, World, open_orion, open_world
from tests.e2e.orion_process import new_state_dir
from tests.e2e.prepared import prepared_state_dir

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

MODEL = "claude-sonnet-5-5"
OPEN = "private:@pip"
"""Hosts that there are, whatever this machine's network is."""
METADATA = "169.254.169.254"
OWN_ROUTES = (
    *("GET /healthz", "GET /readyz", "GET /metrics", "POST /slack/events", "GET /"),
    *("GET /docs", "GET /openapi.json", "POST /broker/anthropic/v1/files", "POST /v1/messages"),
    *("GET /broker/anthropic/v1/models", "POST /broker/anthropic/../../slack/events"),
    *(f"GET http://{METADATA}/latest/meta-data/", "CONNECT example.com:443"),
)
"""Through the broker's socket, which is the one door there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """Random values in Orion's environment, by where they are."""

    values: Mapping[str, str]

    def words(self) -> dict[str, str]:
        """As they would look, too, in a file that somebody had encoded them for."""
        encoded = {
            f"{name}, base64": base64.b64encode(value.encode()).decode()[:-4]
            for name, value in self.values.items()
        }
        return {name: word.encode().hex() for name, word in {**self.values, **encoded}.items()}


@asynccontextmanager
async def _open_stage(
    kind: str, world: World, directory: Path, **settings: str
) -> AsyncIterator[Stage]:
    state_dir = new_state_dir(directory)
    if kind == "docker":
        prepared = await asyncio.to_thread(prepared_image)
        async with open_docker_orion(world, state_dir, prepared, **settings) as stage:
            yield stage
    else:
        prepared_dir = await asyncio.to_thread(prepared_state_dir)
        async with open_orion(world, state_dir, prepared_dir, **settings) as stage:
            yield stage


@pytest.mark.parametrize(
    ("kind", "has_waited", "hosts"),
    [
        pytest.param("local", False, "", marks=pytest.mark.bubblewrap),
        pytest.param("local", False, OPEN, marks=[pytest.mark.bubblewrap, pytest.mark.long]),
        pytest.param("local", True, "", marks=[pytest.mark.bubblewrap, pytest.mark.long]),
        pytest.param("docker", False, OPEN, marks=[pytest.mark.docker, pytest.mark.long]),
        pytest.param("docker", True, "", marks=pytest.mark.docker),
    ],
    ids=["local-False", "local-open", "local-True", "docker-open", "docker-True"],
)
async def test_an_agent_that_looks_everywhere_finds_nothing(
    kind: str, has_waited: bool, hosts: str, tmp_path: Path
) -> None:
    """Environment, processes, files, networks, Orion's routes, others' tokens; what is refused shows in log and trace.

    An agent that waited was given its own token where no environment shows it. With a host to which it may go there is nothing to
    take there, and no way to another one.
    """
    mark = secrets.token_hex(8)
    config = FakeSlackConfig(
        rate_limits="off",
        bot_token=f"xoxb-canary-{secrets.token_hex(12)}",
        signing_secret=secrets.token_hex(16),
    )
    planted = Secrets(
        values={
            "model key": f"sk-ant-canary-{secrets.token_hex(12)}",
            "Slack token": config.bot_token,
            "signing secret": config.signing_secret,
            "Langfuse key": PLAYGROUND_SECRET_KEY,
            "token for operators": secrets.token_hex(16),
            "what Orion does not know": secrets.token_hex(16),
        }
    )
    async with (
        open_world(config) as world,
        _open_stage(
            kind,
            world,
            tmp_path,
            ANTHROPIC_API_KEY=planted.values["model key"],
            ORION_OPS_TOKEN=planted.values["token for operators"],
            SOMEBODYS_PASSWORD=planted.values["what Orion does not know"],
            ORION_WARM_POOL_SIZE=str(int(has_waited)),
            ORION_EGRESS_HOSTS=hosts,
        ) as stage,
    ):
        ended = await stage.client.say("@Orion hello")
        await stage.answer(ended)
        living = await stage.client.say("@Orion run: sleep 60")
        await stage.client.wait_for_reply(living, lambda reply: "sleep 60" in str(reply["blocks"]))
        given = {
            "words": planted.words(),
            "hosts": _hosts(stage),
            "urls": [f"{stage.orion.url}/{path}" for path in ("healthz", "metrics", "broker/")],
            "routes": OWN_ROUTES,
            "tokens": _tokens(stage, ended=ended, living=living),
            "broker": "/broker",
            "model": MODEL,
            "mark": mark,
        }
        if has_waited:
            await stage.orion.until_waiting()
        asked, found = await run_inside(stage, given)
        taken = [line["run_id"] for line in stage.orion.log_lines("sandbox.taken")]
        assert (stage.run_id(asked) in taken) is has_waited
        _show(kind, found)

        assert found["looked at"] > 100
        assert found["hits"] == []
        assert found["others' tokens"] == 0
        assert not [said for said in found["connected"].values() if said == "CONNECTED"]
        assert not found["resolved"].startswith("RESOLVED")
        assert not [said for said in found["fetched"].values() if said.startswith("FETCHED")]
        assert set(found["routes"].values()) <= {400, 404, 405}
        answered = found["tokens"]
        if not has_waited:
            assert answered.pop("own") == 200  # else the others would prove nothing
            assert answered.pop("own, another model") == 403
        assert set(answered.values()) == {401}, answered

        await stage.client.say("stop", thread_ts=living)
        await stage.answer(living)
        refused = len(answered) + (not has_waited)
        await _assert_refusals_are_told(stage, asked, count=refused)
        reached = [
            r for r in await world.model_requests() if r["body"]["messages"][-1]["content"] == mark
        ]
        assert [request["headers"]["x-api-key"] for request in reached] == [
            planted.values["model key"]
        ] * (not has_waited)
        assert await stage.orion.terminate() == 0
        traces = json.dumps([await world.trace(row["id"]) for row in await world.traces()])
        shown = json.dumps(await stage.client.replies(asked))
        for name, value in planted.values.items():
            assert value not in stage.orion.log, name
            assert value not in traces, name
            assert value not in shown, name


def _tokens(stage: Stage, *, ended: str, living: str) -> dict[str, str]:
    """Rightly signed ones that are not the hostile run's own."""
    key = load_signing_key(stage.orion.state_dir / "broker.key")

    def token(run_id: RunId, *, minutes: float = 10) -> str:
        expires_at = datetime.now(UTC) + timedelta(minutes=minutes)
        return create_token(key, ModelGrant(run_id=run_id, models=(MODEL,), expires_at=expires_at))

    return {
        "of a run that has ended": token(stage.run_id(ended)),
        "of a run that is going": token(stage.run_id(living)),
        "of that one, expired": token(stage.run_id(living), minutes=-1),
        "of no run": token(RunId("run_0000000000000000")),
    }


def _hosts(stage: Stage) -> list[tuple[str, int]]:
    """Loopback and own addresses of the host, with ports that are open there; metadata; the internet."""
    orion = int(stage.orion.url.rpartition(":")[2])
    world = int(stage.world.url.rpartition(":")[2])
    addresses = {"127.0.0.1", "::1", "172.17.0.1", _address_of_host()}
    here = [(address, port) for address in sorted(addresses) for port in (orion, world)]
    return [*here, (METADATA, 80), ("fd00:ec2::254", 80), ("1.1.1.1", 443), ("192.0.2.1", 443)]


def _address_of_host() -> str:
    """Its address on its default route, or loopback again; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


async def _assert_refusals_are_told(stage: Stage, asked: str, *, count: int) -> None:
    """Each in the log, with the run whose sandbox asked; and in that run's trace."""
    run_id = stage.run_id(asked)
    lines = [line for line in stage.orion.log_lines("broker.refused") if line["run_id"] == run_id]
    assert len(lines) == count
    tree = await stage.world.whole_trace((await stage.record(asked)).trace_id)
    refused = [seen for seen in _observations(tree) if "HTTP 40" in str(seen.get("status"))]
    assert len(refused) == count


def _observations(tree: JsonObject) -> list[JsonObject]:
    waiting: list[JsonObject] = list(tree["observations"])
    found = []
    while waiting:
        found.append(waiting.pop())
        waiting += found[-1]["children"]
    return found


def _show(kind: str, found: JsonObject) -> None:
    """For people, with `pytest -s`."""
    rows: Sequence[tuple[str, str, object]] = (
        ("secrets", f"{found['looked at']} files and processes", found["hits"] or "nothing found"),
        ("secrets", "tokens of other runs", found["others' tokens"]),
        *(("network", target, said) for target, said in found["connected"].items()),
        ("network", "example.com", found["resolved"]),
        *(("route", url, said) for url, said in found["fetched"].items()),
        *(("broker's socket", route, said) for route, said in found["routes"].items()),
        *(("token", name, said) for name, said in found["tokens"].items()),
    )
    lines = [f"{kind:7} {what:16} {target:58} {said}" for what, target, said in rows]
    sys.stdout.write("\n" + "\n".join(lines) + "\n")

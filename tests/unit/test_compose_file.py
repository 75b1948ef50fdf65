"""What `compose.yaml` says holds together, the profile of Langfuse included: what breaks here comes up nowhere. `tests/e2e/test_compose.py` brings it up, without Langfuse."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

TEXT = Path("compose.yaml").read_text()
SERVICES: Mapping[str, Mapping[str, Any]] = yaml.safe_load(TEXT)["services"]
NETWORKS: Mapping[str, Mapping[str, Any]] = yaml.safe_load(TEXT)["networks"]
DOCKERFILE = Path("Dockerfile").read_text()
ORION = ("serve", "worker")
LANGFUSE = tuple(name for name in SERVICES if name.startswith("langfuse"))
SHORTEST_GRACE_S = 45
"""As `docs/operate.md` gives a container by itself."""


@pytest.mark.parametrize("name", SERVICES)
def test_there_is_something_to_run(name: str) -> None:
    """An image; where it is built, of a directory with a Dockerfile that knows each argument."""
    service = SERVICES[name]
    assert service["image"]
    assert ("build" in service) == (name in ORION)
    if build := service.get("build"):
        assert Path(build["context"], "Dockerfile").is_file()
        assert set(build["args"]) <= set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE))


@pytest.mark.parametrize("name", [name for name in SERVICES if name not in LANGFUSE])
def test_what_is_orions_is_locked_up(name: str) -> None:
    service = SERVICES[name]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "profiles" not in service
    if name in ORION:
        assert int(service["stop_grace_period"].removesuffix("s")) >= SHORTEST_GRACE_S


@pytest.mark.parametrize("name", LANGFUSE)
def test_langfuse_comes_up_when_it_is_asked_for(name: str) -> None:
    assert SERVICES[name]["profiles"] == ["langfuse"]


@pytest.mark.parametrize("name", SERVICES)
def test_it_waits_for_what_there_is(name: str) -> None:
    """For services of its own profile; for the health of those that have a check of it."""
    waits = SERVICES[name].get("depends_on", {})
    for other in waits:
        assert SERVICES[other].get("profiles") == SERVICES[name].get("profiles")
    conditions = waits if isinstance(waits, dict) else {}
    for other, how in conditions.items():
        if how["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[other]
    assert "HEALTHCHECK" in DOCKERFILE


@pytest.mark.parametrize("name", SERVICES)
def test_it_reaches_the_hosts_that_it_is_told(name: str) -> None:
    """Each is a service on a network of its own; a front, which has a worker's environment, reaches no engine."""
    environment = dict(SERVICES[name].get("environment", {}))
    if name == "serve":
        del environment["DOCKER_HOST"]
    for host in _hosts(environment):
        assert _networks(host) & _networks(name), f"{name} does not reach {host}"


def test_those_that_are_reached_are_found() -> None:
    """What the test before looks through is not nothing."""
    assert set(_hosts(SERVICES["worker"]["environment"])) == {"engine", "postgres"}
    stores = {f"langfuse-{kind}" for kind in ("clickhouse", "minio", "postgres", "redis")}
    for name in ("langfuse", "langfuse-worker"):
        assert set(_hosts(SERVICES[name]["environment"])) == stores
        assert stores == set(SERVICES[name]["depends_on"])


def test_orion_reaches_langfuse_and_nothing_behind_it() -> None:
    for name in ORION:
        assert _networks(name) & _networks("langfuse")
        stores = set(LANGFUSE) - {"langfuse", "langfuse-worker"}
        assert not any(_networks(name) & _networks(store) for store in stores)


def test_langfuse_and_its_stores_have_the_same_names_and_passwords() -> None:
    langfuse = SERVICES["langfuse"]["environment"]
    database = SERVICES["langfuse-postgres"]["environment"]
    address = f"{database['POSTGRES_USER']}:{database['POSTGRES_PASSWORD']}@langfuse-postgres/{database['POSTGRES_DB']}"
    assert langfuse["DATABASE_URL"] == f"postgresql://{address}"
    clickhouse = SERVICES["langfuse-clickhouse"]["environment"]
    for key in ("CLICKHOUSE_USER", "CLICKHOUSE_PASSWORD"):
        assert langfuse[key] == clickhouse[key]
    minio = SERVICES["langfuse-minio"]
    upload = "LANGFUSE_S3_EVENT_UPLOAD"
    assert langfuse[f"{upload}_ACCESS_KEY_ID"] == minio["environment"]["MINIO_ROOT_USER"]
    assert langfuse[f"{upload}_SECRET_ACCESS_KEY"] == minio["environment"]["MINIO_ROOT_PASSWORD"]
    assert f"mkdir -p /data/{langfuse[f'{upload}_BUCKET']} " in minio["entrypoint"][-1]
    assert langfuse["REDIS_AUTH"] in SERVICES["langfuse-redis"]["command"]


def test_this_machine_alone_reaches_what_is_published() -> None:
    """The balancer and Langfuse; and the engine's socket is behind its proxy, which workers alone reach."""
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {
        "balancer": ["${PUBLISH:-127.0.0.1:3000}:3000"],
        "langfuse": ["127.0.0.1:3001:3000"],
    }
    with_socket = {
        name for name, one in SERVICES.items() if "docker.sock" in str(one.get("volumes"))
    }
    assert with_socket == {"engine"}
    assert {name for name in SERVICES if "engine" in _networks(name)} == {"engine", "worker"}
    assert all(NETWORKS[name].get("internal") for name in ("database", "engine", "langfuse"))


def test_who_writes_an_env_file_is_told_of_each_variable() -> None:
    """By the page, by `.env.example`, or by a remark in the file."""
    remarks = "".join(line for line in TEXT.splitlines(keepends=True) if line.startswith("#"))
    told = remarks + Path("docs/operate.md").read_text() + Path(".env.example").read_text()
    wanted = set(re.findall(r"\$\{(\w+)", TEXT))
    assert {name for name in wanted if not re.search(rf"\b{name}\b", told)} == set()


def _networks(name: str) -> set[str]:
    return set(SERVICES[name].get("networks", ["default"]))


def _hosts(environment: Mapping[str, str]) -> Iterator[str]:
    """The services that its values name: in a URL behind the user, if one is named, or alone as a `…_HOST`."""
    for key, value in environment.items():
        found = re.findall(r"//(?:[^@/]*@)?([a-z-]+)(?=[:/]|$)", value)
        yield from [name for name in found if name in SERVICES]
        if key.endswith("_HOST") and value in SERVICES:
            yield value

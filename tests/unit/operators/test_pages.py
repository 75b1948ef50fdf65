"""The operators' page over a real server and a real store: who is let in, and what they are told."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.errors import ErrorCode
from app.operators.door import STAYS, Door
from app.operators.pages import VIEWS
from app.runs.testing import Outcome, RunFileKind, RunState
from app.tracing.steps import StepRecord, write_steps
from tests.building import make_entry, make_request, make_run, make_session
from tests.unit.operators.building import SCRIPT, TOKEN, HandClock, Office, open_office


@pytest.fixture
async def office(tmp_path: Path) -> AsyncIterator[Office]:
    async with open_office(tmp_path) as office:
        yield office


async def test_nobody_is_shown_anything_without_the_token(office: Office) -> None:
    """No view, no figure, no stream; what a page loads holds nothing of the deployment."""
    for view in VIEWS:
        answer = await office.http.get(f"/ops/{view}".rstrip("/"))
        assert (answer.status_code, "password" in answer.text) == (401, True)
    for name in ("now", "runs", "runs/run_1", "money", "errors", "processes", "audit"):
        assert (await office.http.get(f"/ops/api/{name}")).status_code == 401
    assert (await office.http.get("/ops/events")).status_code == 401
    for name in ("ops.js", "ops.css", "ops.svg", "dom.js", "look.css", "waterfall.js"):
        assert (await office.http.get(f"/ops/static/{name}")).status_code == 200


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], f"{TOKEN}x", "\udce4", "a" * 100_000])
async def test_a_wrong_token_opens_nothing(office: Office, token: str) -> None:
    """And sets no cookie."""
    answer = await office.log_in(token.encode(errors="surrogateescape").decode("latin-1"))
    assert (answer.status_code, answer.headers.get("set-cookie")) == (403, None)
    assert "That is not the token" in answer.text


async def test_a_page_of_another_origin_cannot_log_in_or_out(office: Office) -> None:
    """Even with the token."""
    foreign = {"origin": "https://evil.example"}
    assert (await office.log_in(**foreign)).status_code == 403
    assert (await office.http.post("/ops/logout", headers=foreign)).status_code == 403


@pytest.mark.parametrize(
    ("shown", "then"),
    [
        ("/ops/runs/run_1", "/ops/runs/run_1"),
        ("/ops/login", "/ops"),
        ("//evil.example/ops/runs/run_1", "/ops"),
    ],
)
async def test_who_logs_in_at_a_run_is_shown_it(office: Office, shown: str, then: str) -> None:
    """And nothing elsewhere."""
    answer = await office.log_in(referer=f"{office.url}{shown}")
    assert answer.headers["location"] == then


async def test_the_cookie_is_no_token_and_ends(office: Office) -> None:
    """It is for the page alone, out of reach of scripts, and no other value is good."""
    answer = await office.log_in()
    assert (answer.status_code, answer.headers["location"]) == (303, "/ops")
    said = answer.headers["set-cookie"]
    assert TOKEN not in said
    assert {"HttpOnly", "Path=/ops", "SameSite=lax"} <= set(said.split("; "))
    assert (await office.http.get("/ops")).text.startswith("<!doctype html>")
    assert (await office.http.get("/ops/api/now")).status_code == 200
    await office.clock.sleep(STAYS.total_seconds() + 1)
    assert (await office.http.get("/ops/api/now")).status_code == 401


def test_a_cookie_of_another_token_or_time_is_none() -> None:
    """Whoever changes the token ends all cookies."""
    clock = HandClock()
    door = Door(TOKEN, now=clock.now)
    cookie = door.cookie()
    until, _, signature = cookie.partition(".")
    assert door.knows(cookie)
    assert not Door("another", now=clock.now).knows(cookie)
    for forged in (
        "",
        ".",
        "x.y",
        f"{int(until) + 1}.{signature}",
        f"{until}.",
        f"{until}.{signature}0",
    ):
        assert not door.knows(forged)


async def test_logging_out_forgets_the_cookie(office: Office) -> None:
    """The browser has none then."""
    await office.log_in()
    await office.http.post("/ops/logout")
    assert (await office.http.get("/ops/api/now")).status_code == 401


async def test_programs_say_the_token_in_a_header(office: Office) -> None:
    """As for `/metrics`."""
    answer = await office.http.get("/ops/api/now", headers={"authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200


async def test_what_goes_on_and_whose_turn_it_is(office: Office) -> None:
    """Masked; a run that waits in a busy thread says so."""
    await office.log_in()
    going = make_run(make_request(text=f"deploy with hunter2 {SCRIPT}", ts="1795302364.000100"))
    await office.store.add(going)
    await office.store.begin(going, agent="claude", started_at=datetime.now(UTC))
    behind = make_run(
        make_request(text="and then?", ts="1795302365.000100", thread_ts="1795302364.000100")
    )
    await office.store.add(behind)
    said = (await office.http.get("/ops/api/now")).json()
    ((one,), (next_one,)) = said["going"], said["waiting"]
    assert (one["id"], one["agent"]) == (going.id, "claude")
    assert one["text"] == f"deploy with [redacted] {SCRIPT}"
    assert (next_one["id"], next_one["turn"]["ahead_in_thread"]) == (behind.id, 1)
    assert said["counts"] == {"running": 1, "accepted": 1}


async def test_of_all_threads_those_are_shown_whose_sandbox_is_kept(office: Office) -> None:
    """With who has it; thousands may have none."""
    await office.log_in()
    for number in (1, 2):
        await office.store.sessions.add(make_session(number))
    await office.store.sessions.update(make_session(2).id, sandbox_id="sb_2", kept_by="p-1")
    said = (await office.http.get("/ops/api/now")).json()
    assert [one["name"] for one in said["kept"]] == ["brave-otter-2"]


async def test_an_address_of_no_view_is_told_so_to_operators(office: Office) -> None:
    """Everybody else is shown the door, as anywhere."""
    assert (await office.http.get("/ops/nowhere")).status_code == 401
    await office.log_in()
    for path in ("nowhere", "runs/a/b", "api/nowhere", "static"):
        answer = await office.http.get(f"/ops/{path}")
        assert (answer.status_code, answer.text[:15]) == (404, "<!doctype html>")


async def test_the_audit_is_found_by_who_where_and_what_became_of_it(office: Office) -> None:
    """Each filter by itself, and together."""
    await office.log_in()
    for number, (user, channel, is_allowed) in enumerate(
        (("U1", "C1", True), ("U1", "C2", False), ("U2", "C1", False))
    ):
        entry = make_entry(id=f"{number}", user=user, channel=channel, is_allowed=is_allowed)
        await office.store.audit.add(entry)

    async def found(**query: str) -> list[tuple[str, str]]:
        rows = (await office.http.get("/ops/api/audit", params=query)).json()["entries"]
        return sorted((row["user"], row["channel"]) for row in rows)

    assert len(await found()) == 3
    assert await found(channel="C1") == [("U1", "C1"), ("U2", "C1")]
    assert await found(verdict="refused") == [("U1", "C2"), ("U2", "C1")]
    assert await found(verdict="allowed", user="U1") == [("U1", "C1")]


async def test_runs_are_found_by_what_they_are(office: Office) -> None:
    """The newest first, and older ones behind a moment."""
    await office.log_in()
    for number, user in enumerate(("U1", "U2", "U1")):
        run = make_run(make_request(ts=f"{number}.000001", user=user), age_s=60 * number)
        await office.store.add(run)
    first = await office.store.recent(limit=1)
    failure = Outcome(state=RunState.FAILED, error_code=ErrorCode.AGENT_IDLE)
    await office.store.update(first[0].id, state=RunState.FAILED, outcome=failure)

    async def found(**query: str) -> list[str]:
        rows = (await office.http.get("/ops/api/runs", params=query)).json()["runs"]
        return [row["created_at"] for row in rows]

    every = await found()
    assert every == sorted(every, reverse=True)
    assert len(every) == 3
    assert await found(user="U2") == [every[1]]
    assert await found(state="failed") == await found(code="AGENT_IDLE") == [every[0]]
    assert await found(before=every[0]) == every[1:]
    assert await found(agent="none") == []


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("runs?state=flying", "'flying' is none of: "),
        ("runs?code=x", "'x' is none of: "),
        ("runs?before=yesterday", "'yesterday' is no moment"),
        ("runs?before=2026-01-01", "has no zone"),
        ("money?by=mood", "'mood' is none of: "),
        ("money?days=0", "is not 1 to 90"),
        ("errors?days=91", "is not 1 to 90"),
        ("errors?days=\u0661", "is not 1 to 90"),
        ("audit?act=fly", "'fly' is none of: "),
        ("audit?verdict=maybe", "'maybe' is none of: allowed, refused"),
    ],
)
async def test_a_query_that_is_none_is_told(office: Office, path: str, said: str) -> None:
    """By its value."""
    await office.log_in()
    answer = await office.http.get(f"/ops/api/{path}")
    assert (answer.status_code, said in answer.json()["error"]) == (400, True)


@pytest.mark.parametrize(
    "run_id", ["run_0", "..%2F..%2Fetc%2Fpasswd", "%00", SCRIPT.replace("/", "%2F")]
)
async def test_a_run_that_is_none(office: Office, run_id: str) -> None:
    """Its page is there, since what it shows is asked for behind it."""
    await office.log_in()
    assert (await office.http.get(f"/ops/api/runs/{run_id}")).status_code == 404


async def test_one_run_whole(office: Office) -> None:
    """Its record, steps, log and answer, masked, and where its trace is."""
    await office.log_in()
    run = replace(make_run(make_request(text="use hunter2")), trace_id="0a")
    await office.store.add(run)
    done = Outcome(state=RunState.SUCCEEDED, answer="it was hunter2")
    await office.store.update(run.id, state=RunState.SUCCEEDED, outcome=done)
    at = datetime.now(UTC)
    steps = [
        StepRecord(name="agent", started_at=at, ended_at=at + timedelta(seconds=2)),
        StepRecord(name="tool", parent="agent", started_at=at, ended_at=at, error="E"),
    ]
    await office.store.files.append(run.id, RunFileKind.STEPS, write_steps(steps))
    await office.store.files.save(run.id, RunFileKind.LOG, f"said hunter2 {SCRIPT}")
    said = (await office.http.get(f"/ops/api/runs/{run.id}")).json()
    assert (said["text"], said["answer"]) == ("use [redacted]", "it was [redacted]")
    assert said["log"] == f"said [redacted] {SCRIPT}"
    assert said["trace"] == "https://traces.acme.org/0a"
    assert [(step["name"], step["parent"], step["error"]) for step in said["steps"]] == [
        ("agent", "", ""),
        ("tool", "agent", "E"),
    ]
    assert said["row"]["id"] == run.id


async def test_errors_have_their_last_run(office: Office) -> None:
    """By codes, the most frequent first."""
    await office.log_in()
    codes = (ErrorCode.AGENT_IDLE, ErrorCode.AGENT_IDLE, ErrorCode.MODEL_CONTEXT_EXCEEDED)
    now = datetime.now(UTC)
    for number, code in enumerate(codes):
        run = replace(make_run(make_request(ts=f"{number}.000001")), created_at=now)
        await office.store.add(run)
        outcome = Outcome(state=RunState.FAILED, error_code=code)
        await office.store.update(run.id, state=RunState.FAILED, outcome=outcome)
    said = (await office.http.get("/ops/api/errors")).json()["errors"]
    assert [(one["code"], one["count"]) for one in said] == [
        ("AGENT_IDLE", 2),
        ("MODEL_CONTEXT_EXCEEDED", 1),
    ]
    assert said[0]["last"]["code"] == "AGENT_IDLE"


async def test_processes_money_and_the_audit_log(office: Office) -> None:
    """As the command line tells them."""
    await office.log_in()
    await office.store.leases.join()
    await office.store.audit.add(make_entry())
    (process,) = (await office.http.get("/ops/api/processes")).json()["processes"]
    assert process["name"] == office.store.leases.process.name
    assert (await office.http.get("/ops/api/money", params={"by": "user"})).json() == {"sums": []}
    (entry,) = (await office.http.get("/ops/api/audit")).json()["entries"]
    assert (entry["user"], entry["is_allowed"]) == ("U1", True)


async def test_changes_are_told_as_they_come(office: Office) -> None:
    """Once at first, and when a run has come."""
    await office.log_in()
    async with office.http.stream("GET", "/ops/events") as stream:
        lines = (line async for line in stream.aiter_lines() if line.startswith("data: "))
        first = await anext(lines)
        await office.store.add(make_run())
        assert await anext(lines) != first

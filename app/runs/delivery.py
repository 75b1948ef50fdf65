"""How a run ends: the outcome is recorded first, then the thread is told, then the record is closed; and what of an answer is told as files."""

import asyncio
import csv
import io
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import PurePosixPath
from urllib.parse import unquote

from app.aio import retry_store
from app.errors import ErrorCode
from app.log import get_logger
from app.markdown import Element, Kind, cells, closed, scan
from app.runs.attempt import Attempt
from app.runs.history import is_interrupted
from app.runs.model import SENT, Delivery, Outcome, Run, RunFileKind, RunState
from app.runs.policy import MAX_ATTEMPTS, RunPolicy, decision_entry
from app.runs.ports import Advance, AgainIn, Done, RunChanges, RunPorts, RunTrace

MAX_TOLD = 10
"""Files that are not shared, by name."""
_FORBIDDEN = (ErrorCode.NOT_ALLOWED, ErrorCode.BUDGET_EXCEEDED)
_log = get_logger(__name__)


class Ending:
    """Ends runs; a crash at any line repeats only the telling."""

    def __init__(self, ports: RunPorts, *, policy: RunPolicy) -> None:
        self._ports = ports
        self._policy = policy

    async def finish(
        self,
        run: Run,
        outcome: Outcome,
        *,
        trace: RunTrace | None = None,
        attempt: Attempt | None = None,
    ) -> Advance:
        """Records the outcome and tells the thread; `trace` is the running attempt's, if there was one."""
        if outcome.state is RunState.STOPPED:
            outcome = replace(outcome, made_way=await self._made_way(run))
        if outcome.state is not RunState.SUCCEEDED:
            outcome = replace(outcome, answer=cut_answer(outcome.answer))
        if outcome.error_code in _FORBIDDEN:
            entry = decision_entry(
                run,
                self._policy,
                at=self._ports.clock.now(),
                mask=self._ports.mask,
                refused=outcome.detail or str(outcome.error_code),
            )
            await retry_store(lambda: self._ports.audit.add(entry))
        changes: RunChanges = {"state": RunState.ANSWERING, "outcome": outcome}
        if attempt is not None:
            changes["sandbox_id"] = attempt.sandbox_id
            changes["event_offset"] = attempt.event_offset
            await self._keep_files(run, attempt)
        run = await retry_store(lambda: self._ports.store.update(run.id, **changes))
        if (
            run.state.is_final
        ):  # whoever ended it meanwhile has told it: nothing else is the truth any more
            return Done()
        return await self.deliver(run, outcome, resumed=False, trace=trace)

    async def _made_way(self, run: Run) -> bool:
        """Whether it was stopped for a later message of its asker."""
        records = await retry_store(lambda: self._ports.store.of_thread(run.thread))
        stopped = next((record for record in records if record.id == run.id), run)
        return is_interrupted(stopped, [record.request for record in records])

    async def _keep_files(self, run: Run, attempt: Attempt) -> None:
        """Stores log and patch before the outcome is recorded: who finds that finds them."""
        log = await asyncio.to_thread(attempt.transcript.text, self._ports.mask)
        if log:
            await retry_store(lambda: self._ports.files.save(run.id, RunFileKind.LOG, log))
        if attempt.difference is not None and attempt.difference.patch:
            patch = await asyncio.to_thread(self._ports.mask, attempt.difference.patch)
            await retry_store(lambda: self._ports.files.save(run.id, RunFileKind.PATCH, patch))

    async def deliver(
        self, run: Run, outcome: Outcome, *, resumed: bool, trace: RunTrace | None = None
    ) -> Advance:
        """Tells the thread a recorded outcome; `resumed` when an earlier process may have begun to."""
        if trace is None:
            with self._ports.tracer.trace(run) as own_trace:
                if not resumed:
                    trace_waiting(run, own_trace, now=self._ports.clock.now())
                return await self.deliver(run, outcome, resumed=resumed, trace=own_trace)
        with trace.step("slack-update") as step:
            if run.delivery == SENT:
                delivery = Delivery(reply_ts=run.reply_ts or "", part_ts=run.part_ts)
            else:
                delivery = await self._ports.replies.finish(run, outcome, resumed=resumed)
            step.set(parts=1 + len(delivery.part_ts))
            unshared = {} if delivery.failure else await self._share(run, outcome, resumed=resumed)
            for failed in (delivery, *unshared.values()):
                if failed.failure:
                    step.fail("delivery_failed", failed.failure)
        told: RunChanges = {
            "delivery": delivery.text,
            "reply_ts": delivery.reply_ts or run.reply_ts or "",
            "part_ts": delivery.part_ts,
        }
        if self._may_yet_pass(run, outcome, delivery, unshared.values()):
            if not delivery.failure:
                await retry_store(lambda: self._ports.store.update(run.id, **told))
            return AgainIn(seconds=self._policy.timings.slack_retry_s)
        if unshared:
            text = not_shared([f"{name} ({failed.failure})" for name, failed in unshared.items()])
            await self._ports.replies.tell_unshared(run, text, resumed=resumed)
        ended: RunChanges = {"state": outcome.state, "ended_at": self._ports.clock.now()}
        run = await self._ports.store.update(run.id, **(told | ended))
        trace.finish(outcome, delivery=delivery.text)
        threshold_s = self._policy.announce_after_s
        is_waited_for = not run.request.is_bot and not delivery.failure
        if threshold_s and outcome.duration_s > threshold_s and is_waited_for:
            await self._ports.replies.announce(run, outcome)
        _log_end(run, outcome)
        return Done()

    async def _share(self, run: Run, outcome: Outcome, *, resumed: bool) -> Mapping[str, Delivery]:
        """Shares the run's files and its patch; returns what failed of them, by their names."""
        replies = self._ports.replies
        found: dict[str, Delivery] = {}
        if outcome.files:
            delivery = await replies.share(run, outcome.files, resumed=resumed)
            found |= {file.name: delivery for file in outcome.files}
        patch = None
        if outcome.changes is not None:
            patch = await retry_store(lambda: self._ports.files.load(run.id, RunFileKind.PATCH))
        if patch:
            name = f"changes-{run.id}.patch"
            found[name] = await replies.attach(run, name=name, content=patch, resumed=resumed)
        return {name: delivery for name, delivery in found.items() if delivery.failure}

    def _may_yet_pass(
        self, run: Run, outcome: Outcome, answer: Delivery, files: Iterable[Delivery]
    ) -> bool:
        """Whether telling it again later may work, and is not too late: then the record says that it was not told."""
        now, timings = self._ports.clock.now(), self._policy.timings
        if answer.may_pass:
            attempts = max(MAX_ATTEMPTS, run.attempt)
            longest_s = self._policy.queue_timeout_s + attempts * self._policy.run_timeout_s
            return now - run.created_at < timedelta(seconds=longest_s) + timings.delivery_grace
        # With its answer there, the next message of the thread need not wait so long.
        ended_at = run.created_at
        if run.deadline_at is not None:  # its last attempt's
            took_s = outcome.duration_s - self._policy.run_timeout_s
            ended_at = run.deadline_at + timedelta(seconds=took_s)
        return any(one.may_pass for one in files) and now - ended_at < timings.sharing_grace


def not_shared(problems: Sequence[str]) -> str:
    """Returns the line that tells which files a thread does not get; each of one or more with why in parentheses."""
    told, others = problems[:MAX_TOLD], len(problems) - MAX_TOLD
    more = f", and {others} more" if others > 0 else ""
    return f"Not shared: {', '.join(told)}{more}."


def trace_waiting(run: Run, trace: RunTrace, *, now: datetime) -> None:
    """Tells the trace what came before the first attempt, as steps that are over."""
    if run.attempt > 1:
        return
    if run.placed_at is not None:
        trace.past_step("place-message", started_at=run.created_at, ended_at=run.placed_at)
    trace.past_step("queue-wait", started_at=run.created_at, ended_at=run.started_at or now)


def make_failure(code: ErrorCode) -> Outcome:
    """Returns the outcome of a run that failed without an agent's word."""
    return Outcome(state=RunState.FAILED, error_code=code)


def make_expired(run: Run, policy: RunPolicy, *, now: datetime) -> Outcome:
    """Returns the outcome of a run whose turn did not come in time."""
    return Outcome(
        state=RunState.FAILED,
        error_code=ErrorCode.QUEUE_FULL,
        detail=f"this one waited longer than {policy.queue_timeout_s:g} s for its turn",
        duration_s=(now - run.created_at).total_seconds(),
    )


def _log_end(run: Run, outcome: Outcome) -> None:
    events = {RunState.SUCCEEDED: "run.finished", RunState.STOPPED: "run.stopped"}
    log = _log.warning if outcome.state is RunState.FAILED else _log.info
    log(
        events.get(outcome.state, "run.failed"),
        code=outcome.error_code or "",
        duration_s=round(outcome.duration_s, 3),
        attempt=run.attempt,
        delivery=run.delivery,
        trace_id=run.trace_id,
    )


# -- long answers ----------------------------------------------------------------------------------------------------------

LONG_ANSWER_CHARS, LONG_ANSWER_ELEMENTS = 30_000, 100
"""Three messages."""
_LONG_CHARS, _SHOWN_LINES, _SHOWN_CHARS, _SHOWN_ELEMENTS = 4_000, 15, 8_000, 30
_ENDINGS = {"bash": "sh", "diff": "diff", "html": "html", "json": "json", "python": "py", "sql": "sql", "yaml": "yaml"}  # fmt: skip


def shorten(answer: str) -> tuple[str, Mapping[str, str]]:
    """Returns an answer of more than three messages with the beginnings of its long tables and logs, and those whole, by file names.

    What is long without them is a file as a whole.
    """
    if not _is_long(answer):
        return answer, {}
    files: dict[str, str] = {}
    short = "".join(_shortened(answer, element, files) for element in scan(answer))
    if not _is_long(short):
        return short, files
    return f"{_beginning(answer)}\n\n(the whole answer is in `answer.md`)", {"answer.md": answer}


def cut_answer(answer: str) -> str:
    """Returns what is shown of an answer that came to no end: of a long one its beginning."""
    return f"{_beginning(answer)}\n\n(the rest is left out)" if _is_long(answer) else answer


def _is_long(answer: str) -> bool:
    return len(answer) > LONG_ANSWER_CHARS or len(scan(answer)) > LONG_ANSWER_ELEMENTS


def _beginning(answer: str) -> str:
    begun = answer[: scan(answer)[:_SHOWN_ELEMENTS][-1].end]
    short = _clip(begun)
    return closed(f"{short.rstrip()}\n…" if short == begun != answer else short)


def _shortened(answer: str, element: Element, files: dict[str, str]) -> str:
    """Returns an element, or its beginning when it goes into a file. What stands in lists and quotes does not."""
    text = answer[element.start : element.end]
    edge = (element.closing or element.opening)[:1]
    if len(text) < _LONG_CHARS or edge in {"", " ", ">"}:
        return text
    content = answer[element.content_start : element.content_end]
    match element.kind:
        case Kind.FENCE:
            return _begin_log(text.partition("\n")[0], element.closing, content, files)
        case Kind.TABLE:
            return _begin_table(element.opening, content.rstrip("\n"), files)
        case _:
            return text


def _begin_log(opening: str, closing: str, content: str, files: dict[str, str]) -> str:
    language = opening.lstrip("`~").strip()
    name = f"log-{len(files) + 1}.{_ENDINGS.get(language.lower(), 'txt')}"
    files[name] = content
    lines = content.split("\n", _SHOWN_LINES)[:_SHOWN_LINES]
    begun = _clip("\n".join(lines)).rstrip("\n")
    count = content.count("\n") + (not content.endswith("\n"))
    return f"{opening}\n{begun}\n{closing}\n\n(the beginning of {count:,} lines, which are in `{name}`)\n"


def _begin_table(head: str, content: str, files: dict[str, str]) -> str:
    rows = content.split("\n")
    name = f"table-{len(files) + 1}.csv"
    files[name] = _csv([head.partition("\n")[0], *rows])
    begun = "\n".join(rows[:_SHOWN_LINES])
    return f"{head}{begun}\n\n(the beginning of {len(rows):,} rows, which are in `{name}`)\n\n"


def _clip(text: str) -> str:
    """Returns the beginning of a text, to the end of a paragraph or a line."""
    if len(text) <= _SHOWN_CHARS:
        return text
    begun = text[:_SHOWN_CHARS]
    at = max(begun.rfind("\n\n"), 0) or max(begun.rfind("\n"), 0) or _SHOWN_CHARS
    return f"{begun[:at]}\n…"


def _csv(rows: Sequence[str]) -> str:
    out = io.StringIO()
    csv.writer(out).writerows(cells(row) for row in rows)
    return out.getvalue()


# -- pictures of answers -----------------------------------------------------------------------------------------------------

_LINK = re.compile(
    r"(!?)\[([^\[\]\n]{0,500})\]\((?![a-zA-Z][a-zA-Z0-9+.-]*:|[#/])((?:[^()\s]|\([^()\s]*+\))++)\)"
)
"""To something beside the answer: no address, no place in a page. None begins inside another, so that it is linear."""


def pictures_of(answer: str, *, cwd: str) -> Sequence[str]:
    """Returns the paths of pictures that an answer shows by a path from `cwd`, and below it."""
    targets = (unquote(target) for mark, _, target in _LINK.findall(answer) if mark)
    paths = (posixpath.normpath(f"{cwd}/{target}") for target in targets)
    return [path for path in paths if path.startswith(f"{cwd}/")]


def name_pictures(answer: str) -> str:
    """Returns an answer that names what it shows by a path, which leads nowhere in a thread."""

    def named(link: re.Match[str]) -> str:
        mark, label, target = link.groups()
        name = PurePosixPath(unquote(target)).name
        return (
            f"{label} (`{name}`)"
            if mark and label != name
            else (f"`{name}`" if mark else link.group(0))
        )

    return _LINK.sub(named, answer)

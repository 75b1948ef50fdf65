"""Which steps are killed in which scenario, and which are not, with the reason: the one place that must name a new step."""

from collections.abc import Iterator, Mapping
from typing import Any

from app.approvals.records import ApprovalStore
from app.audit.records import AuditLog
from app.dispatch.lease import Leases
from app.pull_requests.records import PullRequestStore
from app.runs.testing import (
    ChannelNoteStore,
    Clock,
    CodeHost,
    DefaultStore,
    Dispatcher,
    FileExchange,
    Judge,
    LiveReply,
    ModelBroker,
    OwnKeyStore,
    ReplySink,
    RunFiles,
    RunHandlers,
    RunStore,
    RunTrace,
    SessionStore,
    SpendingStore,
    ThreadReader,
    ThreadStore,
    Tracer,
    TraceStep,
)
from app.slack.catch_up import HeardStore
from app.slack.home import WelcomeStore
from sandbox_runtime import provider

PORTS: Mapping[str, type[Any]] = {
    "store": RunStore,
    "sessions": SessionStore,
    "files": RunFiles,
    "defaults": DefaultStore,
    "channel_notes": ChannelNoteStore,
    "spending": SpendingStore,
    "own_keys": OwnKeyStore,
    "welcomes": WelcomeStore,
    "dispatcher": Dispatcher,
    "leases": Leases,
    "handlers": RunHandlers,
    "replies": ReplySink,
    "live": LiveReply,
    "reader": ThreadReader,
    "exchange": FileExchange,
    "judge": Judge,
    "threads": ThreadStore,
    "approvals": ApprovalStore,
    "audit": AuditLog,
    "pull_requests": PullRequestStore,
    "heard": HeardStore,
    "broker": ModelBroker,
    "code_host": CodeHost,
    "clock": Clock,
    "step": TraceStep,
    "trace": RunTrace,
    "tracer": Tracer,
    "provider": provider.SandboxProvider,
    "sandbox": provider.Sandbox,
    "process": provider.Process,
}
"""Every port by the name it has in a point."""

CAUGHT_UP = ("heard.claim", "heard.keep", "heard.finish", "dispatcher.submit")
KILLED_IN: Mapping[str, tuple[str, ...]] = {
    "question": (
        *("dispatcher.submit", "dispatcher.schedule", "handlers.place", "handlers.advance"),
        *("sessions.add", "sessions.update", "sandbox.snapshot", "sandbox.exec"),
        *("files.save", "replies.attach"),
        *(
            "store.update",
            "store.begin",
            "replies.place",
            "replies.live",
            "replies.finish",
        ),
        *("reader.read", "provider.find_snapshot", "provider.create", "sandbox.write_files"),
        *("sandbox.spawn", "process.events", "process.kill", "sandbox.destroy"),
    ),
    "pool": (
        *("sessions.add", "sandbox.write_files", "provider.create", "sandbox.spawn"),
        *("process.events", "process.kill", "sandbox.destroy"),
    ),
    "refusal": ("replies.refuse",),
    "stop": ("store.request_stop", "sandbox.write_file"),
    "interruption": (
        *("dispatcher.submit", "dispatcher.schedule", "handlers.place", "replies.place"),
        "store.request_stop",
    ),
    "amendment": ("store.amend",),
    "withdrawal": (),
    "announcement": ("replies.announce",),
    "live": (),
    "memory": ("channel_notes.add", "channel_notes.forget"),
    "files": ("exchange.fetch", "exchange.upload", "replies.share"),
    "followups": (
        *("dispatcher.submit", "dispatcher.discard", "handlers.place"),
        *("reader.read", "store.amend", "replies.place"),
    ),
    "shutdown": ("dispatcher.stop", "leases.leave", "provider.leave"),
    "start": (
        *("provider.enter", "provider.probe", "dispatcher.start"),
        *("leases.join", "leases.take_over", "store.unfinished"),
    ),
    "environment": ("provider.ensure_ready",),
    "places": ("dispatcher.submit", "dispatcher.schedule", "welcomes.claim"),
    "approval": (
        *("approvals.ask", "approvals.claim_telling", "replies.show_approval", "approvals.tell"),
        *("approvals.answer", "approvals.use"),
    ),
    "catch_up": CAUGHT_UP,
    "catch_up_socket": CAUGHT_UP,
}
"""Scenario to the steps that it must reach; each is killed before and after."""

NOT_BY_FUNCTIONS: Mapping[str, str] = {
    "sandbox.write_file": "asks an agent to end, by who follows it: between two slices nobody does, and the next ends it"
}
"""Steps that a scenario need not reach where its invocations are brief, and why."""

_READ = "only reads; the neighbouring steps are the same moments"
_INSTANT = "does not wait: between two points nothing happens but this"
_REMOVES = "takes away in batches what ended days ago; what is left is taken an hour later"
_SAME = (
    "sets the same values again when it is repeated, before the run's own records, which are points"
)
_ATTACHED = (
    "only for sandboxes that outlive the service: tests/e2e/test_docker.py kills it with those"
)
_WATCHED = "each moment between two of them: tests/faults/test_pull_request_watch.py"
_UNUSED = "the service does not call it"
SPARED: Mapping[str, str] = {
    "code_host.admit": _READ,
    "code_host.open_pull_request": "after a push, which is noted in the run's record: tests/e2e/test_repositories.py",
    "store.get": _READ,
    **{
        f"approvals.{name}": _READ
        for name in ("get", "get_all", "is_allowed_in", "of_run", "waiting")
    },
    "approvals.close": "ends what is over by the clock; the next look, five seconds later, does the same",
    "approvals.count": "counts for the operator; once more or less is no matter",
    "approvals.hits": "only the command line asks",
    "approvals.release_telling": "lets go some seconds sooner of what then is free by itself",
    "audit.add": "one row, before what it allows, or why nothing was; written again, it is the same row",
    "audit.find": "only the command line asks",
    "audit.remove": _REMOVES,
    "pull_requests.open": "after a push, as code_host.open_pull_request; repeated, it writes the same",
    "pull_requests.get": _READ,
    "pull_requests.claim": _WATCHED,
    "pull_requests.save": _WATCHED,
    "replies.show_notice": _WATCHED,
    "dispatcher.parked": _INSTANT,
    "store.add": "the dispatcher's own: dispatcher.submit is the same moment",
    **{f"reader.{name}": _READ for name in ("name_of", "stands")},
    "store.stop_requested": _READ,
    "store.waiting_in": _READ,
    "store.of_thread": _READ,
    "sessions.get": _READ,
    "files.load": _READ,
    "files.append": "written behind; a kill loses what people would see of the last slice: decision 75",
    "spending.add": "written behind; a kill may lose the last calls' cost, nothing else: tests/e2e/test_budgets.py",
    "spending.sums": _READ,
    "spending.of_run": _READ,
    "own_keys.of": _READ,
    "own_keys.change": "one transaction, before its person is told; sent again, it sets the same",
    "welcomes.release": "after Slack has said that nothing was posted; without it nobody is welcomed twice",
    "store.recent_of": _READ,
    "threads.has_run": _READ,
    "threads.is_muted": _READ,
    "threads.mute": "one row, before the acknowledgement; said again, it says the same",
    "judge.ask": "changes nothing, and is asked again",
    "channel_notes.of": _READ,
    "defaults.get": _READ,
    "defaults.change": _SAME,
    "defaults.reset": _SAME,
    "defaults.keep": _SAME,
    "defaults.last_change": _READ,
    "replies.tell_change": "looked for before it is told again: tests/unit/slack/test_replies.py",
    "replies.settle_question": "the buttons stay if it is killed before; who presses one is told what became of the question",
    "replies.tell_unshared": "looked for before it is told again: tests/unit/slack/test_replies.py",
    "sessions.find": "only the command line reads it",
    "sessions.all": "only the command line reads it",
    "sessions.unused_since": _READ,
    "sessions.remove": _REMOVES,
    "store.queue_stats": _READ,
    "store.remove_ended": _REMOVES,
    "dispatcher.wake": _INSTANT,
    "dispatcher.probe": _INSTANT,
    "dispatcher.borrow": "keeps a waiting run from being claimed; what is told meanwhile is a point",
    "leases.holds": _READ,
    "leases.overdue": _READ,
    "leases.late": _READ,
    "leases.discard": "dispatcher.discard is the same moment",
    "leases.schedule": "dispatcher.schedule is the same moment",
    "leases.claim": "dispatcher.schedule is the moment before, handlers.advance the one after",
    "leases.find_lost": _READ,
    "leases.borrow": "see dispatcher.borrow",
    "leases.give_back": "see dispatcher.borrow; a process that dies before gives it back",
    "leases.release": "one row, after the run's own records, which are points",
    "leases.renew": "says that a process lives: tests/contract/test_leases.py kills and freezes those",
    "leases.is_shared": _INSTANT,
    "leases.id": _INSTANT,
    "leases.lives": _READ,
    "leases.unclaim": "sooner by some seconds than leases.leave, which is a point, lets go of the same",
    "dispatcher.process": _INSTANT,
    "dispatcher.has_ended": _READ,
    "handlers.hand_over": _INSTANT,
    "handlers.end": "after a bug in advance: tests/contract/test_dispatchers.py",
    "store.recent": _READ,
    "heard.begin": "once in the life of a database: before it, nobody was ever heard",
    "heard.advance": "says up to when all was heard; what a kill leaves is an earlier moment, after which more is looked through",
    "heard.release": "what a dead process has claimed, anybody may claim",
    "store.counts": "only the metrics read it",
    "store.deliveries": "only the metrics read it",
    "replies.show_ephemeral": "shows a text to one person, who may press again",
    "live.show": _INSTANT + "; the Slack call that follows is a point",
    "broker.endpoint_for": _INSTANT,
    "broker.rebind": _INSTANT,
    "broker.keep": _INSTANT,
    "broker.close": _INSTANT,
    "broker.open_grant": _INSTANT + "; tokens die with the process that signs them",
    "clock.now": _INSTANT,
    "clock.sleep": "changes nothing",
    **{
        f"step.{name}": _INSTANT
        for name in ("set", "fail", "attempt", "tool", "generation", "pause")
    },
    **{f"trace.{name}": _INSTANT for name in ("step", "past_step", "finish", "pause")},
    "process.detach": "only between two slices: tests/faults/test_slices.py",
    "sessions.take_kept": "one row, of a sandbox that sandbox.spawn uses at once",
    **{f"tracer.{name}": _INSTANT for name in ("trace_id", "trace", "link", "score")},
    "provider.name": _INSTANT,
    "provider.region": _INSTANT,
    "provider.capabilities": _INSTANT,
    "provider.attach": _ATTACHED,
    "provider.list": _READ,
    "provider.find": "only the command line asks",
    "provider.stats": "only the command line asks",
    "provider.release": "only the command line leaves a sandbox running",
    "provider.remove": _ATTACHED,
    "provider.sweep": "takes away what is left; the next start does",
    "provider.list_snapshots": _UNUSED,
    "provider.delete_snapshot": _REMOVES,
    "provider.keep_copy": "what is not whole is no copy, and is swept",
    "sandbox.container_name": _INSTANT,
    "sandbox.open_terminal": "only for a person at the command line",
    "sandbox.extend": "lets it live longer, nothing else; the file that follows is a point",
    "sandbox.read_file": _READ,
}
"""Steps without a point of their own, and why."""

SLACK_CALLS: Mapping[str, str] = {
    "chat.postMessage": "question",
    "chat.update": "question",
    "agents.sessions.setStatus": "question",
    "assistant.threads.setStatus": "live",
    "chat.startStream": "live",
    "chat.appendStream": "live",
    "chat.stopStream": "live",
    "conversations.replies": "question",
    "files.getUploadURLExternal": "question",
    "files.completeUploadExternal": "question",
    "chat.postEphemeral": "refusal",
    "users.conversations": "catch_up",
    "conversations.history": "catch_up",
}
"""Web API methods to the scenario that must reach them."""
SLACK_SPARED: Mapping[str, str] = {
    "chat.delete": "takes away a stream whose answer stands below it: tests/unit/slack/test_streams.py",
    "auth.test": "asks who the bot is, at start; changes nothing",
    "files.info": "asks what a message did not tell of a file; changes nothing",
    "conversations.info": "asks a channel's name, once in the life of a process; changes nothing",
    "users.info": "asks a person's name, once in the life of a process; changes nothing",
    "usergroups.users.list": "asks who is in a user group; changes nothing",
    "views.publish": "shows one person what is on record, and again when they look again",
    "assistant.threads.setSuggestedPrompts": "sets the same again when it is repeated",
    "views.open": "shows a modal to one person, who may press again",
}


def steps_of_ports() -> Iterator[str]:
    """Port and method, for every method and property of every port."""
    renamed = {"__aenter__": "enter", "__aexit__": "leave"}
    for port, protocol in PORTS.items():
        for name in vars(protocol):
            if name in renamed or not name.startswith("_"):
                yield f"{port}.{renamed.get(name, name)}"


def bare(step: str) -> str:
    """Port and method of a point's step: `store.update[running]` is `store.update`."""
    name = step.partition("[")[0]
    return name if name.startswith("slack.") else ".".join(name.split(".")[:2])


def is_spared(step: str) -> bool:
    return bare(step) in SPARED or step.removeprefix("slack.") in SLACK_SPARED

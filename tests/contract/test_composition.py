"""What the composition root joins."""

from pathlib import Path
from typing import TypeVar, cast

from app.compose.adapters import Overrides
from app.errors import ErrorCode
from app.main import open_service
from app.runs.testing import Outcome, RunState
from app.settings.settings import load_settings
from app.store.memory import MemoryRunStore
from sandbox_runtime.testing.fake import FakeProvider
from tests.building import make_run
from tests.faults.building import JournalReplies
from tests.faults.plan_agent import PlanAdapter

PartT = TypeVar("PartT")


async def test_what_is_put_around_a_port_is_what_everybody_gets(tmp_path: Path) -> None:
    """The intake, too: what it shows a person of a run's log passes the parts that were put in place."""
    replies, files = JournalReplies(), MemoryRunStore().files
    wrapped: list[str] = []

    def wrap(port: str, part: PartT, /) -> PartT:
        wrapped.append(port)
        return cast("PartT", {"replies": replies, "files": files}.get(port, part))

    settings = load_settings(
        env_file=None,
        given={
            "anthropic_api_key": "sk-ant-test",
            "slack_bot_token": "xoxb-test",
            "slack_signing_secret": "signing",
            "slack_api_url": "http://127.0.0.1:9/api/",
            "orion_state_dir": tmp_path / "state",
        },
    )
    overrides = Overrides(provider=FakeProvider(), adapter=PlanAdapter(), wrap=wrap)
    async with open_service(settings, overrides=overrides) as service:
        run = make_run()
        await service.store.add(run)
        await service.store.update(
            run.id,
            state=RunState.FAILED,
            outcome=Outcome(
                state=RunState.FAILED,
                error_code=ErrorCode.AGENT_EXECUTION_FAILED,
                detail="it ```broke",
            ),
        )
        await service.intake.show_log(run.id, user="U1")
    assert replies.ephemerals == [
        (run.thread.thread_ts, "U1", "```\nit \u02cb\u02cb\u02cbbroke\n```")
    ]
    assert len(wrapped) == len(set(wrapped))

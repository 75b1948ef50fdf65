"""What is known around a run when it is chosen how it is answered, and what Orion answers by itself: `settings`, and wishes that cannot be met."""

from collections.abc import Mapping, Sequence

from app.errors import ErrorCode
from app.runs.choice import Choice, Circumstances, Offers, choose, find_problem
from app.runs.defaults import DefaultStore
from app.runs.effective import carry_out, find_command_problem, render_choice
from app.runs.model import Run, RunResult, RunState
from app.runs.options import Wishes
from app.runs.own_keys import OwnKeyStore
from app.runs.patience import patiently
from app.runs.run_store import RunStore
from app.runs.session import SessionStore, session_id_for


class Choosing:
    """Holds nothing of a run in between."""

    def __init__(
        self,
        *,
        store: RunStore,
        defaults: DefaultStore,
        own_keys: OwnKeyStore,
        sessions: SessionStore,
        channels: Mapping[str, Wishes],
        offers: Offers,
    ) -> None:
        """`channels`: what `orion.toml` says of them, by their ids."""
        self._store = store
        self._sessions = sessions
        self._defaults = defaults
        self._own_keys = own_keys
        self._channels = channels
        self._offers = offers

    async def choose(self, run: Run) -> Choice:
        """What the run gets."""
        return choose(run.request.options, await self._around(run), self._offers)

    async def answer(self, run: Run) -> RunResult | None:
        """How the run ends if it needs no agent; None = it does. A command is carried out; safe to repeat."""
        request = run.request
        options, offers = request.options, self._offers
        command = options.command
        if command is None and not options.model and not options.branch:
            return None
        around = await self._around(run)
        choice = choose(options, around, offers)
        problem = find_problem(options, offers.agents, choice.agent.value)
        if options.branch and not choice.repo.value:
            problem = problem or f"branch={options.branch} needs its repository: repo=owner/name"
        if command is not None:
            problem = problem or find_command_problem(command, around, offers)
        if problem:
            return RunResult(
                outcome=RunState.FAILED, error_code=ErrorCode.REQUEST_INVALID, detail=problem
            )
        if command is None:
            return None
        said = await patiently(lambda: carry_out(command, request, self._defaults, around, offers))
        keys = await patiently(lambda: self._own_keys.of(request.team, request.user))
        return RunResult(
            outcome=RunState.SUCCEEDED,
            answer=render_choice(await self.choose(run), said, own_keys=sorted(keys)),
        )

    async def _around(self, run: Run) -> Circumstances:
        request = run.request
        return Circumstances(
            earlier=await self._earlier(run),
            session=await patiently(lambda: self._sessions.get(session_id_for(run.thread))),
            person=await patiently(lambda: self._defaults.get(request.team, request.user)),
            channel=await patiently(lambda: self._defaults.get(request.team, request.channel)),
            file=self._channels.get(request.channel, Wishes()),
        )

    async def _earlier(self, run: Run) -> Sequence[Run]:
        """Those of its thread that were executed before it."""
        if run.request.thread_ts == run.request.message_ts:
            return ()
        return [
            other
            for other in await patiently(lambda: self._store.of_thread(run.thread))
            if other.attempt > 0 and other.request.order_in_thread < run.request.order_in_thread
        ]

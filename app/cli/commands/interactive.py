"""The agent's own command line at a person's terminal, among a thread's files, with a broker of this command."""

import os
import shutil
import uuid
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from agent_scripts.adapter import AgentPaths, AgentSession, AgentTurn
from agent_scripts.registry import create_adapter
from agent_scripts.supervision import InteractiveAdapter, at_terminal
from app.cli.commands import terminal
from app.cli.commands.sandboxes import SandboxAdmin, SandboxCommandError, open_admin
from app.cli.commands.shell import ShellSandbox, quieten, save, spec_of
from app.cli.commands.terminal import Print
from app.cli.commands.verify import open_model
from app.compose.brokers import open_broker
from app.compose.egress import learn_host_sets
from app.compose.policy import host_lists
from app.egress.hosts import HostEntry
from app.runs.broker import GrantHooks, ModelBroker, ModelGrant
from app.runs.request import RunId
from app.runs.session import Session
from app.settings.settings import Settings, host_environment
from sandbox_runtime.lifecycle import open_sandbox
from sandbox_runtime.provider import Sandbox
from sandbox_runtime.types import BrokeredNetwork, Capability

MAX_HOURS = 12
"""How long the token is good."""
MAX_CALLS = 10_000
MAX_OUTPUT_TOKENS = 64_000
"""Per call: a person's session is not bounded as an answer in Slack is."""


async def work_with_agent(settings: Settings, text: str, *, say: Print) -> int:
    """Runs an agent in the terminal until the person leaves it; returns the agent's exit code. What was changed is saved as after a shell.

    Raises:
        SandboxCommandError: there is no terminal, or the session's agent has no such form.
        SandboxError: there is no sandbox to work in.
    """
    quieten(settings)
    async with open_admin(settings) as admin:
        session = await admin.find(text)
        adapter = create_adapter(session.agent)
        if not isinstance(adapter, InteractiveAdapter):
            raise SandboxCommandError(
                f"{session.name}: the agent {session.agent!r} has no form of its own for a person; "
                f"`orion sandboxes shell {session.name}` works among its files"
            )
        if not terminal.is_at_terminal():
            raise SandboxCommandError("the agent's own form needs a terminal")
        async with open_model(settings, say) as answering:
            return await _work(admin, session, adapter, answering, say=say)


async def _work(
    admin: SandboxAdmin,
    session: Session,
    adapter: InteractiveAdapter,
    settings: Settings,
    *,
    say: Print,
) -> int:
    directory = settings.service.state_dir / f"resume-{os.getpid()}"
    provider = await admin.provider(session.provider)
    if Capability.REMOTE in provider.capabilities:
        raise SandboxCommandError(
            f"{session.name}: the model is reached from sandboxes of {provider.name!r} only while a run goes; "
            f"`orion sandboxes shell {session.name}` works among its files"
        )
    with admin.locks.use(session.id) as is_alone, ExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        async with open_broker(settings, directory) as broker:
            spec = replace(
                await spec_of(settings, session, provider, say=say),
                network=BrokeredNetwork(endpoint=broker.endpoint_for(session.id).address),
            )
            async with open_sandbox(provider, spec) as sandbox:
                hosts = host_lists(await learn_host_sets(settings))
                grant = _grant(session, hosts.of(session.thread.channel, session.repo))
                code = await _run(sandbox, session, adapter, broker, grant, say=say)
                opened = ShellSandbox(sandbox=sandbox, is_of_thread=False)
                say(f"{session.name}: {await save(admin, session, opened, is_alone=is_alone)}")
    return code


async def _noted() -> None:
    """A person who sits there knows what the agent does outside."""


def _grant(session: Session, hosts: tuple[HostEntry, ...]) -> ModelGrant:
    return ModelGrant(
        run_id=RunId(f"person_{uuid.uuid4().hex}"),
        models=(session.model,),
        expires_at=datetime.now(UTC) + timedelta(hours=MAX_HOURS),
        max_output_tokens=MAX_OUTPUT_TOKENS,
        max_calls=MAX_CALLS,
        session_id=session.id,
        hosts=hosts,
    )


async def _run(
    sandbox: Sandbox,
    session: Session,
    adapter: InteractiveAdapter,
    broker: ModelBroker,
    grant: ModelGrant,
    *,
    say: Print,
) -> int:
    paths = sandbox.paths
    async with broker.open_grant(
        grant, GrantHooks(on_call=lambda _call: None, on_effect=_noted)
    ) as token:
        memory = session.agent_session_id
        turn = AgentTurn(
            messages=(),
            system_prompt="",
            model=session.model,
            max_output_tokens=MAX_OUTPUT_TOKENS,
            max_turns=MAX_CALLS,
            run_token=token,
            paths=AgentPaths(
                work=paths.work,
                home=paths.home,
                run=f"{paths.run}/person",
                environment=paths.environment,
            ),
            session=AgentSession(id=memory, resume=True) if memory else None,
        )
        command = at_terminal(adapter.interactive(turn), turn, broker=paths.broker)
        await sandbox.write_files({file.path: file.data for file in command.files})
        say(
            f"{session.name}: {'its memory of the thread' if memory else 'no memory of the thread'}"
        )
        term = host_environment().get("TERM", "xterm")
        return await terminal.run_on_terminal(sandbox, command.argv, term=term)

"""What the emulated service has: sandboxes, their sessions, snapshots; and its limits."""

import asyncio
import base64
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from sandbox_runtime.task_group import TaskGroup
from tests.certificates import Authority
from tests.emulators.machine import Machine, boot
from tests.emulators.machine_disk import MachineImage, copy, discard
from tests.emulators.machine_network import CLOSED, OPEN, Address, Policy, adding
from tests.emulators.vercel.commands import Command

TOKEN, TEAM, PROJECT = "token-of-tests", "team_tests", "prj_tests"
_CLAIMS = b'{"exp": 9e9, "owner_id": "%s", "project_id": "%s"}' % (TEAM.encode(), PROJECT.encode())
OIDC_TOKEN = f"e30.{base64.urlsafe_b64encode(_CLAIMS).decode().rstrip('=')}.of-tests"
MAX_TAGS, MAX_TAG_CHARS, MAX_NAME_CHARS = 5, 256, 128
MIN_TIMEOUT_MS, MAX_TIMEOUT_MS, DEFAULT_TIMEOUT_MS = 60_000, 24 * 3_600_000, 300_000
CPUS = (1, 2, 4, 8)
REGION = "iad1"
CONCURRENCY = 50
HOST_CA_FILE = Path("/etc/ssl/certs/ca-certificates.crt")
CA_FILE = "/etc/ssl/sandbox.pem"
_CA_NAMES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")


class Refused(Exception):  # noqa: N818 - an answer
    """An answer that is an error."""

    def __init__(self, status: int, code: str, message: str = "") -> None:
        super().__init__(message or code)
        self.status, self.code = status, code


class Session:
    """One microVM."""

    def __init__(self, sandbox: "SandboxRecord", machine: Machine, stack: AsyncExitStack) -> None:
        self.id = f"sbx_{secrets.token_hex(8)}"
        self.sandbox = sandbox
        self.machine = machine
        self.stack = stack
        self.status = "pending"
        self.timeout_ms = sandbox.timeout_ms
        self.started_at = round(time.time() * 1000)
        self.commands: dict[str, Command] = {}
        self.changing = asyncio.Lock()

    def state(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "sourceSandboxName": self.sandbox.name,
            "projectId": PROJECT,
            "status": self.status,
            "cwd": "/vercel/sandbox",
            "region": REGION,
            "memory": 2048 * self.sandbox.vcpus,
            "vcpus": self.sandbox.vcpus,
            "timeout": self.timeout_ms,
            "requestedAt": self.started_at,
            "startedAt": self.started_at,
        }

    def require_running(self) -> None:
        if self.status == "snapshotting":
            raise Refused(422, "sandbox_snapshotting")
        if self.status != "running":
            raise Refused(410, "sandbox_stopped", "the session is stopped")


class SandboxRecord:
    """What stays of a sandbox until it is destroyed."""

    def __init__(self, name: str, body: Mapping[str, Any]) -> None:
        self.name = name
        self.tags: dict[str, str] = dict(body.get("tags") or {})
        self.env: dict[str, str] = dict(body.get("env") or {})
        self.persistent = bool(body.get("persistent", True))
        self.timeout_ms = int(body.get("timeout", DEFAULT_TIMEOUT_MS))
        self.vcpus = int((body.get("resources") or {}).get("vcpus", 2))
        self.created_at = round(time.time() * 1000)
        self.base_snapshot: str | None = (body.get("source") or {}).get("snapshotId")
        self.current_snapshot = self.base_snapshot
        self.session: Session | None = None

    def state(self) -> dict[str, Any]:
        assert self.session is not None
        state = {
            "name": self.name,
            "currentSessionId": self.session.id,
            "status": self.session.status,
            "persistent": self.persistent,
            "projectId": PROJECT,
            "region": REGION,
            "vcpus": self.vcpus,
            "memory": 2048 * self.vcpus,
            "timeout": self.timeout_ms,
            "createdAt": self.created_at,
            "updatedAt": self.created_at,
            "tags": self.tags,
        }
        return state | (
            {"currentSnapshotId": self.current_snapshot} if self.current_snapshot else {}
        )


class World:
    """One project. `group` owns what runs in it."""

    def __init__(
        self,
        directory: Path,
        *,
        group: TaskGroup,
        internet: Sequence[Address],
        binds: Sequence[Path],
        files: Mapping[str, str],
    ) -> None:
        self._directory = directory
        self.group = group
        self._internet = tuple(internet)
        self.authority = Authority()
        """Of the network, which ends the TLS of hosts with rules; the service has one for each sandbox."""
        trusted = HOST_CA_FILE.read_text("ascii") + self.authority.pem
        self._image = MachineImage(
            directories=("/vercel/sandbox",),
            env=dict.fromkeys(_CA_NAMES, CA_FILE),
            binds=tuple(binds),
            files={**files, CA_FILE: trusted},
        )
        self.sandboxes: dict[str, SandboxRecord] = {}
        self.sessions: dict[str, Session] = {}
        self.snapshots: dict[str, dict[str, Any]] = {}
        self.concurrency = CONCURRENCY
        self.start_s = 0.0
        """How long a session is pending."""
        self.created = 0

    async def create(self, body: Mapping[str, Any]) -> SandboxRecord:
        """A record, and a session that will run."""
        name = body.get("name") or f"sandbox-{secrets.token_hex(4)}"
        _check(name, body)
        if name in self.sandboxes:
            raise Refused(409, "conflict", f"a sandbox {name} exists already")
        if sum(s.status in ("pending", "running") for s in self.sessions.values()) >= self.concurrency:  # fmt: skip
            raise Refused(429, "rate_limited", "too many concurrent sandboxes")
        record = SandboxRecord(name, body)
        saved = None
        if record.base_snapshot is not None:
            if record.base_snapshot not in self.snapshots:
                raise Refused(410, "snapshot_not_found", "the snapshot does not exist any more")
            saved = self._directory / record.base_snapshot
        self.sandboxes[name] = record
        self.created += 1
        stack = AsyncExitStack()
        disk = self._directory / f"disk-{secrets.token_hex(8)}"
        stack.push_async_callback(discard, disk)
        machine = await stack.enter_async_context(
            boot(disk, image=self._image, saved=saved, internet=self._internet)
        )
        session = record.session = Session(record, machine, stack)
        self.sessions[session.id] = session
        policy = body.get("networkPolicy") or {"mode": "allow-all"}
        machine.network.policy = parse_policy(policy, self.authority)
        if self.start_s:
            self.group.create_task(self._start_later(session))
        else:
            session.status = "running"
        self.group.create_task(self._expire(session))
        return record

    async def _start_later(self, session: Session) -> None:
        ready_at = time.monotonic() + self.start_s
        while session.status == "pending" and time.monotonic() < ready_at:
            await asyncio.sleep(0.05)  # in pieces: the emulator's end does not wait for it
        if session.status == "pending":
            session.status = "running"

    async def _expire(self, session: Session) -> None:
        while session.status in ("pending", "running"):
            left_s = (session.started_at + session.timeout_ms) / 1000 - time.time()
            if left_s <= 0:
                await self.stop(session)
                return
            await asyncio.sleep(min(left_s, 0.5))

    async def stop(self, session: Session, *, status: str = "stopped") -> None:
        async with session.changing:
            if session.status in ("stopped", "failed"):
                return
            session.status = status
            await session.machine.stop()
            await session.stack.aclose()

    async def destroy(self, record: SandboxRecord, *, with_snapshots: bool) -> None:
        assert record.session is not None
        await self.stop(record.session)
        self.sandboxes.pop(record.name, None)
        if with_snapshots and record.current_snapshot is not None:
            await self.delete_snapshot(record.current_snapshot)  # also one that others boot from

    async def snapshot(self, session: Session, expiration_ms: int | None) -> dict[str, Any]:
        """Ends the session, as the service does."""
        session.require_running()
        session.status = "snapshotting"
        await session.machine.stop()
        snapshot_id = f"snap_{secrets.token_hex(8)}"
        await copy(session.machine.root, self._directory / snapshot_id)
        now_ms = round(time.time() * 1000)
        state = {
            "id": snapshot_id,
            "sourceSessionId": session.id,
            "region": REGION,
            "status": "created",
            "sizeBytes": 4096,
            "createdAt": now_ms,
            "updatedAt": now_ms,
        } | ({"expiresAt": now_ms + expiration_ms} if expiration_ms else {})
        self.snapshots[snapshot_id] = state
        session.sandbox.current_snapshot = snapshot_id
        await self.stop(session)
        return state

    async def delete_snapshot(self, snapshot_id: str) -> None:
        if self.snapshots.pop(snapshot_id, None) is not None:
            await discard(self._directory / snapshot_id)

    async def close(self) -> None:
        for session in self.sessions.values():
            await self.stop(session)
        for snapshot_id in list(self.snapshots):
            await self.delete_snapshot(snapshot_id)


def parse_policy(body: Mapping[str, Any], authority: Authority) -> Policy:
    """Source: facts of the wire protocol, `networkPolicy`."""
    if set(body) == {"mode"}:
        modes = {"allow-all": OPEN, "deny-all": CLOSED}
        if body["mode"] not in modes:
            raise Refused(400, "bad_request", "networkPolicy.mode")
        return modes[body["mode"]]
    if set(body) != {"allow"}:
        raise Refused(400, "bad_request", "networkPolicy")
    hosts = {}
    for host, rules in body["allow"].items():
        headers: dict[str, str] = {}
        for rule in rules:
            if set(rule) != {"transform"}:
                raise Refused(400, "bad_request", "a rule of networkPolicy")
            for transform in rule["transform"]:
                headers |= transform["headers"]
        if ":" in host or "/" in host:
            raise Refused(400, "bad_request", f"not a domain: {host}")
        hosts[host] = adding(headers) if headers else None
    return Policy(hosts=hosts, authority=authority)


def _check(name: str, body: Mapping[str, Any]) -> None:
    check_tags(body.get("tags") or {})
    if len(name) > MAX_NAME_CHARS:
        raise Refused(400, "bad_request", "name")
    if not MIN_TIMEOUT_MS <= int(body.get("timeout", DEFAULT_TIMEOUT_MS)) <= MAX_TIMEOUT_MS:
        raise Refused(400, "bad_request", "timeout")
    if (body.get("resources") or {}).get("vcpus", 2) not in CPUS:
        raise Refused(400, "bad_request", "resources.vcpus")


def check_tags(tags: Mapping[str, str]) -> None:
    if len(tags) > MAX_TAGS or any(len(value) > MAX_TAG_CHARS for value in tags.values()):
        raise Refused(400, "bad_request", "tags")

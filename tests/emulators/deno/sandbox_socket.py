"""The WebSocket of one connection to an emulated sandbox: calls, and streams both ways."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from aiohttp import WSMsgType, web

from sandbox_runtime.task_group import TaskGroup, open_task_group
from tests.emulators.deno import checking
from tests.emulators.deno.faults import Fault, Faults, Kind
from tests.emulators.deno.resources import APP, Box, Refused
from tests.emulators.machine import MachineProcess
from tests.emulators.spans import Spans

MAX_FRAME = 1024 * 1024
_CHUNK = 32 * 1024
_STREAM = "$sandbox.stream."

After = list[Callable[[], Coroutine[Any, Any, None]]]
"""What begins when the call was answered."""
Method = Callable[[Mapping[str, Any]], Awaitable[tuple[Any, After]]]


class SandboxSocket:
    """Ends with the sandbox. What it started loses its first process then; what that one left behind goes on."""

    def __init__(
        self, box: Box, faults: Faults, calls: list[tuple[str, dict[str, Any]]], spans: Spans
    ) -> None:
        self._box = box
        self._faults = faults
        self._calls = calls
        self._spans = spans
        self._processes: dict[int, MachineProcess] = {}
        self._inputs: dict[int, asyncio.Queue[bytes | None]] = {}
        self._count = 0
        self._silent = False
        self._methods: Mapping[str, Method] = {
            "spawn": self._spawn,
            "processWait": self._process_wait,
            "processKill": self._process_kill,
            "envGet": self._env_get,
            "envToObject": self._env_to_object,
        }
        self.ws = web.WebSocketResponse(max_msg_size=MAX_FRAME, autoping=False)

    async def serve(self) -> None:
        """Until the connection ends, or the sandbox does."""
        try:
            async with open_task_group() as group:
                tasks = [group.create_task(self._watch()), group.create_task(self._read(group))]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                await self._end(group, tasks)
        except BaseExceptionGroup as failures:
            _, others = failures.split((ConnectionError, asyncio.CancelledError))
            if others is not None:
                raise others from failures
        finally:
            for process in self._processes.values():
                process.signal(9)
                if process.stdin is not None:
                    process.stdin.close()
                for reader in (process.stdout, process.stderr):
                    reader._transport.close()  # type: ignore[attr-defined]  # else it waits, unread, for ever

    async def _end(self, group: TaskGroup, tasks: list[asyncio.Task[None]]) -> None:
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(1):
                await self.ws.close(code=1001, message=b"the sandbox has ended")
        self.cut()
        for task in tasks:
            task.cancel()
        for running in list(group._tasks):
            running.cancel()

    async def _watch(self) -> None:
        await self._box.ended.wait()

    def cut(self) -> None:
        """The connection is gone, without a word."""
        request = self.ws._req
        if request is not None and request.transport is not None:
            request.transport.abort()

    async def _read(self, group: TaskGroup) -> None:
        async for message in self.ws:
            if self._silent:
                continue
            if message.type == WSMsgType.PING:
                await self.ws.pong(message.data)
            elif message.type == WSMsgType.TEXT and message.data == "ping":
                await self.ws.send_str("pong")
            elif message.type == WSMsgType.TEXT:
                found = json.loads(message.data)
                if "id" in found:
                    group.create_task(self._call(group, found))
                else:
                    self._stream(found)

    async def _call(self, group: TaskGroup, message: Mapping[str, Any]) -> None:
        with self._spans.span():
            await self._answer_call(group, message)

    async def _answer_call(self, group: TaskGroup, message: Mapping[str, Any]) -> None:
        method, number = message["method"], message["id"]
        fault = self._faults.take(method)
        if fault is not None and not await self._strike(fault, number):
            return
        if method not in checking.RPC:
            await self._answer(number, error={"code": -32601, "message": "Method not found"})
            return
        try:
            params = checking.rpc_params(method, message.get("params"))
        except Refused as exc:
            await self._answer(number, error={"code": -32602, "message": exc.message})
            return
        self._calls.append((method, params))
        try:
            found, after = await self._methods[method](params)
        except ConnectionError as exc:
            await self._answer(
                number, result={"error": {"constructorName": "Error", "message": str(exc)}}
            )
            return
        if fault is not None and fault.kind is Kind.CUT_AFTER:
            self.cut()
            return
        await self._answer(number, result={"ok": found})
        for work in after:
            group.create_task(work())

    async def _strike(self, fault: Fault, number: int) -> bool:
        """Whether the call goes on."""
        match fault.kind:
            case Kind.CUT:
                self.cut()
            case Kind.SILENT:
                self._silent = True
            case Kind.GARBAGE | Kind.HTML:
                await self._send_text("<html>502 Bad Gateway</html>")
            case Kind.FAIL:
                await self._answer(number, error={"code": 3, "message": "Isolate internal error"})
            case Kind.SLOW:
                await asyncio.sleep(fault.seconds)
                return True
            case _:
                return True
        return False

    def _stream(self, message: Mapping[str, Any]) -> None:
        what = message["method"].removeprefix(_STREAM)
        number = message["params"]["streamId"]
        if what == "start":
            self._inputs[number] = asyncio.Queue()
        elif what == "enqueue":
            self._inputs[number].put_nowait(base64.b64decode(message["params"]["data"]))
        elif what in {"end", "error"}:
            self._inputs[number].put_nowait(None)

    async def _spawn(self, params: Mapping[str, Any]) -> tuple[Any, After]:
        stdin = params.get("stdinStreamId")
        env = {} if params.get("clearEnv") else self._box.env
        process = await self._box.machine.start(
            [params["command"], *params.get("args", [])],
            user=APP.name,
            cwd=params.get("cwd", APP.home),
            env={**env, **params.get("env", {})},
            stdin=stdin is not None,
        )
        self._count += 3
        pid, out, err = self._count, self._count + 1, self._count + 2
        self._processes[pid] = process
        work: After = [
            partial(self._count_life, process),
            partial(self._pump, out, process.stdout),
            partial(self._pump, err, process.stderr),
        ]
        if stdin is not None:
            work.append(partial(self._feed, process, self._inputs[stdin]))
        return {"pid": pid, "stdoutStreamId": out, "stderrStreamId": err}, work

    async def _process_wait(self, params: Mapping[str, Any]) -> tuple[Any, After]:
        code = await self._processes[params["pid"]].wait()
        signal = "SIGKILL" if code == 137 else None
        return {"success": code == 0, "code": code, "signal": signal, "oom": None}, []

    async def _process_kill(self, params: Mapping[str, Any]) -> tuple[Any, After]:
        self._processes[params["pid"]].signal({"SIGKILL": 9}.get(params.get("signal", ""), 15))
        return None, []

    async def _env_get(self, params: Mapping[str, Any]) -> tuple[Any, After]:
        return self._box.env.get(params["key"]), []

    async def _env_to_object(self, _params: Mapping[str, Any]) -> tuple[Any, After]:
        return dict(self._box.env), []

    async def _count_life(self, process: MachineProcess) -> None:
        """Its output is pushed: while it lives a client waits for it, though no call is going."""
        with self._spans.span():
            await process.wait()

    async def _pump(self, number: int, reader: asyncio.StreamReader) -> None:
        await self._notify("start", {"streamId": number})
        while data := await reader.read(_CHUNK):
            text = base64.b64encode(data).decode("ascii")
            await self._notify("enqueue", {"streamId": number, "data": text})
        await self._notify("end", {"streamId": number})

    async def _feed(self, process: MachineProcess, queue: asyncio.Queue[bytes | None]) -> None:
        assert process.stdin is not None
        try:
            while (data := await queue.get()) is not None:
                process.stdin.write(data)
                await process.stdin.drain()
        except ConnectionError:
            return
        finally:
            process.stdin.close()

    async def _notify(self, what: str, params: Mapping[str, Any]) -> None:
        await self._send_text(
            json.dumps({"jsonrpc": "2.0", "method": f"{_STREAM}{what}", "params": params})
        )

    async def _answer(self, number: int, **found: Any) -> None:
        await self._send_text(json.dumps({"jsonrpc": "2.0", "id": number, **found}))

    async def _send_text(self, text: str) -> None:
        if not self._silent:
            await self.ws.send_str(text)

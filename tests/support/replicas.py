"""One aggregator of a live deployment as several processes over PostgreSQL, behind a balancer that passes on TLS."""

import asyncio
import re
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.deployment import LiveDeployment, troubles_of
from tests.support.processes import ChildProcess, wait_until, without_numba

THIS_RELEASE = (sys.executable, "-m", "fleetcount")
NEXT_RELEASE = (sys.executable, str(Path(__file__).with_name("next_release.py")))

_PIECE = 65_536


class Balancer:
    """Passes each connection to the next of `targets` (a port of loopback, or a socket's file) that takes it.

    While `passes` is not set nothing comes through, and no end hears of it: the line is cut.
    """

    def __init__(self, *targets: tuple[str, int] | Path) -> None:
        self.targets: list[tuple[str, int] | Path] = list(targets)
        self.passed = 0
        self.passes = asyncio.Event()
        self.passes.set()
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        task.add_done_callback(self._connections.pop)
        far = await self._next()
        if far is None:
            writer.transport.abort()
            return
        pumps = [asyncio.ensure_future(self._pump(*ends)) for ends in ((reader, far[1]), (far[0], writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for end in (writer, far[1]):
                end.transport.abort()

    async def _next(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for _ in self.targets:
            self.passed += 1
            target = self.targets[self.passed % len(self.targets)]
            with suppress(OSError):
                if isinstance(target, Path):
                    return await asyncio.open_unix_connection(target)
                return await asyncio.open_connection(*target)
        return None

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while piece := await reader.read(_PIECE):
                await self.passes.wait()
                writer.write(piece)
                await writer.drain()

    async def close(self) -> None:
        """End every connection; its task ends with it, since streams complain of one that was cancelled."""
        ending = dict(self._connections)
        for writer in ending.values():
            writer.transport.abort()
        await asyncio.gather(*ending, return_exceptions=True)


@asynccontextmanager
async def balanced(port: int, *targets: tuple[str, int] | Path) -> AsyncIterator[Balancer]:
    """A balancer on a port of loopback."""
    balancer = Balancer(*targets)
    server = await asyncio.start_server(balancer.accept, "127.0.0.1", port)
    try:
        yield balancer
    finally:
        server.close()
        await balancer.close()


def open_files(pid: int) -> set[str]:
    """Return what a process's descriptors are, as /proc names it; empty for one that has ended."""
    found = set[str]()
    with suppress(OSError):
        for one in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.add(str(one.readlink()))
    return found


def listening_socket(port: int) -> str:
    """Return the socket that listens on a port, as /proc names it; "" if none does."""
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = row.split()
            if words[3] == "0A" and int(words[1].rpartition(":")[2], 16) == port:
                return f"socket:[{words[9]}]"
    return ""


class Replicas:
    """Processes of aggregator 0 of a deployment, which is not started itself; each has a configuration of its own."""

    def __init__(self, deployment: LiveDeployment, url: str, *, slots: int = 1) -> None:
        self._deployment = deployment
        self._slots = slots
        self._url = url
        self.processes: dict[str, ChildProcess] = {}
        self._words: dict[str, list[str]] = {}
        self._commands: dict[str, list[str]] = {}

    def add(self, name: str, roles: str, *, program: Sequence[str] = THIS_RELEASE, url: str = "") -> ChildProcess:
        """Return a process with some roles, not started; `url`: of the same store by another way."""
        config = str(self._write(name, url or self._url))
        self._words[name] = ["aggregator", "serve", "--config", config, "--roles", roles]
        command = self._commands[name] = [*program, *self._words[name]]
        process = ChildProcess.of(name, command, self._deployment.root, without_numba())
        self.processes[name] = process
        return process

    def change_release(self, name: str, program: Sequence[str]) -> None:
        """Start another program in the place of a process from now on."""
        self._commands[name][:] = [*program, *self._words[name]]

    @contextmanager
    def accepting_failover(self) -> Iterator[None]:
        """Let processes that start meanwhile be told that a standby has taken over."""
        for command in self._commands.values():
            command.append("--accept-failover")
        try:
            yield
        finally:
            for command in self._commands.values():
                command.pop()

    def _write(self, name: str, url: str) -> Path:
        plan, whole = self._deployment.written.plans[0], self._deployment.config(0)
        text = whole.read_text().replace('state_directory = "state"', f'state_directory = "state-{name}"')
        text = text.replace(f'"{plan.host}:{plan.device_port}"', '"127.0.0.1:0"')
        text = text.replace("[mqtt]\n", f"[mqtt]\nslots = {self._slots}\n")
        path = whole.with_name(f"{name}.toml")
        path.write_text(f'{text}\n[store]\nurl = "{url}"\n[metrics]\nlisten = "127.0.0.1:0"\n')
        return path

    def start(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Start processes and return what each says when it is ready."""
        for name in names:
            self.processes[name].start()
        return {name: self.processes[name].ready() for name in names}

    def said(self, name: str, event: str) -> bool:
        """Whether a process has logged an event."""
        log = self.processes[name].log
        return log.exists() and f'"event": "{event}"' in log.read_text("utf-8", "replace")

    def connected_slots(self, name: str) -> set[int]:
        """Return in which slots a process is connected to the broker, as its metrics say."""
        page = f"http://127.0.0.1:{self.processes[name].ready()['metrics_port']}/metrics"
        with urllib.request.urlopen(page, timeout=5) as answer:
            text = answer.read().decode()
        rows = re.findall(r'^fleetcount_broker_slot_connected\{slot="(\d+)"\} 1\.0$', text, re.MULTILINE)
        return {int(slot) for slot in rows}

    def troubles(self, name: str) -> list[str]:
        """Return what no test may cause in a process's log."""
        return troubles_of(self.processes[name])

    def coordinator(self, names: Sequence[str]) -> str:
        """Wait until one of these processes coordinates; return it."""
        return str(
            wait_until(lambda: next((one for one in names if self.said(one, "coordinator")), ""), "a coordinator")
        )

    def leading(self) -> str:
        """Return which process coordinates now, "" if none does: the one that listens for peers."""
        socket = listening_socket(self._deployment.written.plans[0].peer_port)
        running = {name: process for name, process in self.processes.items() if process.running}
        return next((name for name, process in running.items() if socket in open_files(process.pid)), "")

    def stop_all(self) -> dict[str, int]:
        """End every process that runs; return their exit codes."""
        running = {name: process for name, process in self.processes.items() if process.running}
        for process in running.values():
            process.terminate()
        return {name: process.ended() for name, process in running.items()}

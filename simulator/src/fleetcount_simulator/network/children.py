"""Child processes of a run: their start and ready line, their lines of JSON, and their end in every case.

It must not depend on the task of a child.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, cast

from fleetcount_simulator.errors import ProcessError

_TERM_S: Final = 5.0
_MAX_LINE: Final = 1 << 20
_LEAST_FREE_BYTES: Final = 1 << 20


def last_line(log: Path) -> str:
    """Return the last line a child wrote to its log, at most 300 characters; of an empty log, why that may be."""
    try:
        lines = log.read_bytes()[-4096:].decode("utf-8", "replace").strip().splitlines()
        if lines:
            return lines[-1][:300]
        full = shutil.disk_usage(log.parent).free < _LEAST_FREE_BYTES
    except OSError as error:
        return f"its log {log} cannot be read: {error.strerror}"
    return f"the disk of {log.parent} is full (TMPDIR names another place)" if full else f"it wrote nothing to {log}"


class Child:
    """One running child: its name, its process, its log of stderr, and its JSON lines on stdout."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log

    async def line(self) -> dict[str, Any] | None:
        """Return the next JSON object of its stdout, or None once it has closed it; skip lines of other content."""
        stdout = cast("asyncio.StreamReader", self.process.stdout)  # Every child is started with a pipe.
        while raw := await stdout.readline():
            with contextlib.suppress(ValueError):
                value = json.loads(raw)
                if isinstance(value, dict):
                    return cast("dict[str, Any]", value)
        return None

    async def lines(self) -> AsyncIterator[dict[str, Any]]:
        """Iterate over its JSON objects until it closes its stdout."""
        while (value := await self.line()) is not None:
            yield value

    async def ready(self, timeout_s: float) -> dict[str, Any]:
        """Return its ready line.

        Raises:
            ProcessError: it ended first, or wrote no line for `timeout_s` seconds.
        """
        try:
            async with asyncio.timeout(timeout_s):
                value = await self.line()
        except TimeoutError:
            raise ProcessError(f"{self.name} was not ready within {timeout_s:.0f} s: {last_line(self.log)}") from None
        if value is None:
            code = await self.process.wait()
            raise ProcessError(f"{self.name} ended with code {code} before it was ready: {last_line(self.log)}")
        return value

    async def tell(self, line: str) -> None:
        """Write one line to its stdin; do nothing if it has ended."""
        stdin = cast("asyncio.StreamWriter", self.process.stdin)  # Every child is started with a pipe.
        with contextlib.suppress(ConnectionError):
            stdin.write(line.encode() + b"\n")
            await stdin.drain()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    async def succeed(self) -> None:
        """Wait for its end.

        Raises:
            ProcessError: its exit code is not 0.
        """
        code = await self.process.wait()
        if code != 0:
            raise ProcessError(f"{self.name} ended with code {code}: {last_line(self.log)}")


class Children:
    """The children of one run; leaving the context ends every one of them, after errors too.

    Each child is a session of its own, so that Ctrl-C reaches this process alone, which ends its children.
    """

    def __init__(self, log_directory: Path) -> None:
        self._log_directory = log_directory
        self._children: list[Child] = []

    async def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> Child:
        """Start a child whose stderr goes to `name`.log; its stdin is a pipe that closes when this process dies.

        Raises:
            ProcessError: the program cannot be started.
        """
        log = self._log_directory / f"{name}.log"
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=descriptor,
                env=None if environment is None else {**os.environ, **environment},
                cwd=directory,
                start_new_session=True,
                limit=_MAX_LINE,
            )
        except OSError as error:
            raise ProcessError(f"{name} cannot be started: {error}") from error
        finally:
            os.close(descriptor)
        child = Child(name, process, log)
        self._children.append(child)
        return child

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._signal(signal.SIGTERM)
        ends = [asyncio.ensure_future(child.process.wait()) for child in self._children]
        try:
            # A full pipe without a reader could keep a child from ending: drain its pipes while it ends.
            drains = [asyncio.ensure_future(_drain(child)) for child in self._children]
            if ends:
                await asyncio.wait(ends, timeout=_TERM_S)
            for drain in drains:
                drain.cancel()
        finally:
            # Reached also when a second Ctrl-C ends the wait above.
            self._signal(signal.SIGKILL)
            await asyncio.gather(*ends)

    def _signal(self, number: signal.Signals) -> None:
        for child in self._children:
            if child.process.returncode is None:
                child.send(number)


async def _drain(child: Child) -> None:
    stdout = cast("asyncio.StreamReader", child.process.stdout)  # Every child is started with a pipe.
    while await stdout.read(_MAX_LINE):
        pass

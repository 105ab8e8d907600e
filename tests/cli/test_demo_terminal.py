"""Long commands on a real terminal: bars that are drawn over, then the table; Ctrl-C typed there ends them."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.cli.test_demo import processes_of
from tests.cli.test_simulate import LONG, study
from tests.support.processes import pace

pytestmark = [pytest.mark.processes, pytest.mark.timeout(200)]


TAKES = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
"""Makes the terminal that of its own session, so that Ctrl-C typed there reaches it, then becomes the program."""


class Terminal:
    """A command whose stdin, stdout and stderr are one terminal of 100 columns."""

    def __init__(self, folder: Path, command: str, *words: str) -> None:
        self.screen, inner = pty.openpty()
        termios.tcsetwinsize(inner, (40, 100))
        (folder / "tmp").mkdir()
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                TAKES,
                sys.executable,
                "-m",
                "fleetcount",
                command,
                "--output",
                str(folder / "out"),
                *words,
            ],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "TMPDIR": str(folder / "tmp")},
        )
        os.close(inner)
        self.written = ""

    def read_until(self, words: str | None, seconds: float = 150) -> None:
        """Read what is written until these words stand there, or until the end."""
        deadline = time.monotonic() + seconds * pace()
        while words is None or words not in self.written:
            ready, _, _ = select.select([self.screen], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{words!r} was not written: {self.written[-500:]}"
            try:
                found = os.read(self.screen, 65_536)
            except OSError:  # Linux: nobody has the other side open any more.
                found = b""
            if not found:
                assert words is None, f"{words!r} was not written: {self.written[-500:]}"
                return
            self.written += found.decode()

    @property
    def lines(self) -> list[str]:
        """What was written, without colours and moves of the cursor."""
        return (
            re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.written).replace("\r\n", "\n").replace("\r", "\n").splitlines()
        )

    def close(self) -> None:
        """End the program if it still runs, and the terminal."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.screen)


def test_bars_are_drawn_over_and_ctrl_c_gives_the_cursor_back(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "simulate", str(study(tmp_path, LONG)))
    try:
        terminal.read_until("0/")
        os.write(terminal.screen, b"\x03")
        terminal.read_until(None, 60)
        code = terminal.process.wait(timeout=30)
    finally:
        terminal.close()

    assert code == 130, terminal.lines[-5:]
    assert "\x1b[?25l" in terminal.written, "the cursor is hidden while bars move"
    assert terminal.written.rindex("\x1b[?25h") > terminal.written.rindex("\x1b[?25l"), "and shown again"
    assert terminal.lines[-1] == "fleetcount simulate: interrupted"
    assert "Traceback" not in terminal.written


@pytest.mark.nightly
def test_a_demo_on_a_terminal_draws_bars_and_ends_with_its_table(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "demo", "--vehicles", "60", "--transport", "grpc")
    try:
        terminal.read_until(None)
        code = terminal.process.wait(timeout=30)
    finally:
        terminal.close()

    assert code == 0, terminal.lines[-5:]
    assert "\x1b[?25l" in terminal.written, "the cursor is hidden while bars move"
    assert terminal.written.rindex("\x1b[?25h") > terminal.written.rindex("\x1b[?25l"), "and shown again"
    bars = [line for line in terminal.lines if line.startswith("round two")]
    assert "60/60" in bars[-1]
    assert any(
        line.split() == ["cell", "95", "%", "interval", "about", "raw", "estimate", "truth"] for line in terminal.lines
    )
    wrote, then = terminal.lines[-2:]
    assert wrote.startswith("wrote release.json, trusted.toml, comparison.csv, map.svg, map.png in ")
    assert then.startswith("check its signatures: fleetcount verify ")
    assert "Traceback" not in terminal.written
    assert processes_of(tmp_path) == []


@pytest.mark.nightly
def test_ctrl_c_typed_on_the_terminal_ends_everything(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "demo", "--vehicles", "40", "--transport", "grpc")
    try:
        terminal.read_until("connecting")
        os.write(terminal.screen, b"\x03")
        terminal.read_until(None, 60)
        code = terminal.process.wait(timeout=30)
    finally:
        terminal.close()

    assert code == 130
    assert terminal.lines[-1] == "fleetcount demo: interrupted"
    assert "Traceback" not in terminal.written
    assert terminal.written.rindex("\x1b[?25h") > terminal.written.rindex("\x1b[?25l")
    assert not (tmp_path / "out").exists()
    assert processes_of(tmp_path) == []

"""What a worker process is given to do in tests of how it dies or waits; here, so that it finds the functions."""

import os
import signal
import time
from pathlib import Path

from fleetcount_aggregator.verification.workers import ProofSetting


def dies_unless_scalar(setting: ProofSetting, number: int) -> str:
    """Return which verifier was asked for; die by a signal where it is compiled code."""
    if setting.prefer != "scalar":
        os.kill(os.getpid(), number)
    return setting.prefer


def dies_once(setting: ProofSetting, mark: Path) -> str:
    """Return which verifier was asked for; be killed from outside the first time."""
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return setting.prefer


def asked_for(setting: ProofSetting) -> str:
    """Return which verifier was asked for."""
    return setting.prefer


def nothing() -> None:
    """Be done at once."""


def kill_oneself(number: int) -> None:
    """End this process by a signal."""
    os.kill(os.getpid(), number)


def wait_for(mark: Path) -> None:
    """Wait until a file is there."""
    while not mark.exists():
        time.sleep(0.01)

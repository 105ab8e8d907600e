"""What a worker process is given to do in tests of how it dies, waits or grows: it must find the functions."""

import os
import signal
import sys
import time
from pathlib import Path

from fleetcount_aggregator.verification.share_arithmetic import ProofSetting


def dies_of_compiled_code(setting: ProofSetting, number: int) -> str:
    """Return which verifier was asked for; die by a signal where it is compiled code."""
    if setting.prefer != "arrays":
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


def loaded(names: frozenset[str]) -> set[str]:
    """Return which of these modules this process has loaded."""
    return names & set(sys.modules)


def loaded_by_readings(names: frozenset[str]) -> set[str]:
    """Return which of these modules a process has loaded that read a release of each design."""
    from fractions import Fraction

    from fleetcount_analysis.reading import read

    from tests.support.designs import every_design

    for design in every_design((2,)):
        read(design, [200] * design.output_count, Fraction(9, 10))
    return loaded(names)

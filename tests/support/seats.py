"""What processes side by side do in tests of waiting for them; here, so that they find the functions."""

import os
import time
from typing import Any

FOREVER_S = 600


def reports(seat: int, results: Any, _: object) -> None:
    """Report at once."""
    results.put((seat, {"seat": seat}))


def dies(seat: int, results: Any, _: object) -> None:
    """End without a report, the first one with."""
    if seat:
        os._exit(3)
    reports(seat, results, _)


def stays(seat: int, results: Any, _: object) -> None:
    """Never report, but the first one."""
    if seat:
        time.sleep(FOREVER_S)
    reports(seat, results, _)


def reports_and_stays(seat: int, results: Any, _: object) -> None:
    """Report, and then only the first one ends."""
    reports(seat, results, _)
    if seat:
        time.sleep(FOREVER_S)


def fills_memory(mebibytes: int, seen: Any) -> None:
    """Hold some memory until an event is set."""
    held = bytearray(os.urandom(2**20)) * mebibytes
    seen.wait(FOREVER_S)
    del held

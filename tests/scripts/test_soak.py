"""What the soak counts is there to be seen: files, descriptors, memory, bytes a task."""

import os
from contextlib import ExitStack
from pathlib import Path

from tests.campaign.soak import Held, allowed, grown, held

KIB = 1024


def test_what_a_process_opens_and_writes_is_counted(tmp_path: Path) -> None:
    before = held(os.getpid(), tmp_path, ended=0)
    with ExitStack() as stack:
        for number in range(20):
            stack.enter_context((tmp_path / str(number)).open("wb")).write(bytes(64 * KIB))
        kept = b"\1" * (32 * KIB * KIB)
        after = held(os.getpid(), tmp_path, ended=10)

    growth = grown(before, after)
    assert growth["descriptors"] >= 20 > allowed(2.5)["descriptors"]
    assert growth["files"] == 20
    assert growth["bytes_a_task"] == 2 * 64 * KIB
    assert growth["own_mib"] > len(kept) / KIB**2 / 2


def test_growth_is_what_came_after_the_first_look() -> None:
    first = Held(own_mib=200, descriptors=60, files=20, state_bytes=100_000, ended=40)
    last = Held(own_mib=201, descriptors=60, files=22, state_bytes=300_000, ended=140)

    growth = grown(first, last)
    assert 0.6 < growth.pop("own_mib") < 0.7, "of 1 MiB, 0.38 may be the database's pages"
    assert growth == {"descriptors": 0, "files": 2, "bytes_a_task": 2_000}

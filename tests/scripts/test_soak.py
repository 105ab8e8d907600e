"""What the soak counts is there to be seen: files, descriptors, memory, bytes a window."""

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from fleetcount_protocol.question.question import Question

from tests.campaign import soak
from tests.campaign.soak import Held, Soak, allowed, grown, held, too_slow
from tests.support.question_samples import sampling_question

KIB = 1024


GROWS = """
import sys
from pathlib import Path
print("ready", flush=True)
input()
files = [(Path(sys.argv[1]) / str(number)).open("wb") for number in range(20)]
for file in files:
    file.write(bytes(64 * 1024))
    file.flush()
kept = b"1" * (32 * 1024 * 1024)
print("grown", flush=True)
input()
"""


@pytest.mark.processes
def test_what_a_process_opens_and_writes_is_counted(tmp_path: Path) -> None:
    """In a process of its own: what tests before this one left open here may close in between."""
    pipe, command = subprocess.PIPE, [sys.executable, "-c", GROWS, str(tmp_path)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        before = held(child.pid, tmp_path, ended=0)
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "grown\n"
        after = held(child.pid, tmp_path, ended=10)

    growth = grown(before, after)
    assert growth["descriptors"] >= 20 > allowed(2.5)["descriptors"]
    assert growth["files"] == 20
    assert growth["bytes_a_window"] == 2 * 64 * KIB
    assert growth["own_mib"] > 32 / 2


def test_growth_is_what_came_after_the_first_look() -> None:
    first = Held(own_mib=200, descriptors=60, files=20, state_bytes=100_000, ended=40)
    last = Held(own_mib=201, descriptors=60, files=22, state_bytes=300_000, ended=140)

    growth = grown(first, last)
    assert 0.6 < growth.pop("own_mib") < 0.7, "of 1 MiB, 0.38 may be the database's pages"
    assert growth == {"descriptors": 0, "files": 2, "bytes_a_window": 2_000}


class _Deployment:
    """Stands for one whose windows are not there in time, or end in an error."""

    def submit(self, question: Question) -> Question:
        """Take any question."""
        return question


def _call_failed(code: grpc.StatusCode) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details="")


@pytest.mark.parametrize(
    ("error", "slow", "wrong"),
    [
        (TimeoutError(), 1, 0),
        (_call_failed(grpc.StatusCode.DEADLINE_EXCEEDED), 1, 0),
        (_call_failed(grpc.StatusCode.INTERNAL), 0, 1),
        (AssertionError("not ended"), 0, 1),
    ],
)
async def test_a_window_that_is_not_there_in_time_ends_no_soak_and_is_told_of(
    monkeypatch: pytest.MonkeyPatch, error: Exception, slow: int, wrong: int
) -> None:
    async def nowhere(*_: object) -> None:
        raise error

    monkeypatch.setattr(soak, "offer_of", nowhere)
    run = Soak(cast("Any", _Deployment()), cast("Any", None))

    await run.one(sampling_question(name="question 7"))

    assert (len(run.slow), len(run.wrong)) == (slow, wrong)
    assert "question 7" in [*run.slow, *run.wrong][0]


def test_a_soak_of_slow_windows_fails() -> None:
    assert too_slow(["question 7: not offered in time"], 20) == []
    assert too_slow(["question 7"] * 14, 1440) == []
    assert too_slow(["question 7: not offered in time"] * 15, 1440) == [
        "15 of 1440 windows were too slow to judge, the first question 7: not offered in time"
    ]

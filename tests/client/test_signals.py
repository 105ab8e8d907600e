"""A signal is read when asked, and whatever cannot be read is "none of them"."""

import asyncio
import os
import re
from decimal import Decimal
from pathlib import Path

import pytest
from fleetcount_client.signals import FileSource, Reading, SignalUnavailable, constant, read_signal
from fleetcount_protocol.errors import UsageError

CONTENTS: list[tuple[bytes, object]] = [
    (b"50.5\n", Decimal("50.5")),
    (b"4.1", Decimal("4.1")),
    (b"-3", -3),
    (b"1e3", 1000),
    (b"true", True),
    (b"null", None),
    (b'"B"', "B"),
    (b"plain text", "plain text"),
    (b"\xef\xbb\xbf63", 63),
    (b"[12.5, 7]", (Decimal("12.5"), 7)),
    (b"[NaN, 1]", None),
    (b"NaN", None),
    (b"1e999", Decimal("1e999")),
    (b"1e999999999", None),
    (b"1e99999999999999999999", None),
    (b"1" + b"0" * 400, 10**400),
    (b"[" * 4000, "[" * 4000),
]
FAULTS = [
    (b"[1, 2, 3]", "a list or an object"),
    (b'[1, "2"]', "a position is two numbers"),
    (b'{"value": 63}', "a list or an object"),
    (b"\xff\xfe", "not UTF-8"),
    (b"x" * 5000, "more than 4096 bytes"),
]


async def read(path: Path) -> Reading:
    return await read_signal({"Vehicle.Speed": FileSource(path)}, "Vehicle.Speed")


async def test_a_file_holds_one_value_exactly_as_it_is_written_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "signal.txt"
    for content, expected in CONTENTS:
        path.write_bytes(content)

        reading = await read(path)
        assert (reading.value, reading.fault) == (expected, ""), content[:40]
        assert type(reading.value) is type(expected) or content == b"1e3"


async def test_a_file_that_holds_no_signal_is_at_fault(tmp_path: Path) -> None:
    path = tmp_path / "signal.txt"
    for content, said in FAULTS:
        path.write_bytes(content)

        reading = await read(path)
        assert said in reading.fault
        assert reading.value is None


async def test_a_missing_file_reads_as_nothing_and_a_new_one_is_read_at_the_next_question(tmp_path: Path) -> None:
    before = await read(tmp_path / "signal.txt")
    (tmp_path / "signal.txt").write_text("")
    empty = await read(tmp_path / "signal.txt")
    (tmp_path / "signal.txt").write_text("1")

    assert before.why_none == "the file cannot be read (No such file or directory)"
    assert empty.why_none == "the file is empty"
    assert await read(tmp_path / "signal.txt") == Reading(value=1)


async def test_a_pipe_a_folder_and_a_device_file_hold_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero"), Path("/dev/tty")):
        assert (await read(path)).why_none in {
            "it is no regular file",
            "the file cannot be read (No such file or directory)",
        }


@pytest.mark.parametrize("error", [SignalUnavailable(), OSError(), ValueError(), KeyError(), ZeroDivisionError()])
async def test_a_source_that_has_no_value_now_reads_as_nothing(error: Exception) -> None:
    def source() -> float:
        raise error

    reading = await read_signal({"Vehicle.Speed": source}, "Vehicle.Speed")

    assert (reading.value, reading.fault, bool(reading.why_none)) == (None, "", True)


async def test_a_mistake_in_the_owners_function_is_a_fault_that_says_where_and_holds_no_value() -> None:
    def source() -> float:
        raise TypeError("63 is a bug")

    reading = await read_signal({"Vehicle.Speed": source}, "Vehicle.Speed")

    assert reading.value is None
    assert re.fullmatch(r"reading it raised TypeError \(test_signals\.py line [0-9]+\)", reading.fault)


async def test_a_source_whose_own_work_was_cancelled_is_at_fault_and_a_device_that_ends_is_not() -> None:
    waits: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def source() -> float:
        return await waits

    asking, ending = (asyncio.create_task(read_signal({"Vehicle.Speed": source}, "Vehicle.Speed")) for _ in range(2))
    await asyncio.sleep(0)
    ending.cancel()
    waits.cancel()

    assert (await asking).fault.startswith("reading it raised CancelledError (")
    with pytest.raises(asyncio.CancelledError):
        await ending


async def test_a_signal_without_a_source_is_named() -> None:
    with pytest.raises(UsageError, match=r"Vehicle\.Speed"):
        await read_signal({"Vehicle.Name": constant("x")}, "Vehicle.Speed")

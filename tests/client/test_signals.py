"""A signal is read when asked, and whatever cannot be read is "none of them"."""

from pathlib import Path

import pytest
from fleetcount_client.signals import FileSource, SignalUnavailable, constant, read_signal
from fleetcount_protocol.errors import UsageError

CONTENTS: list[tuple[bytes, object]] = [
    (b"50.5\n", 50.5),
    (b"-3", -3),
    (b"true", True),
    (b"null", None),
    (b'"B"', "B"),
    (b"plain text", "plain text"),
    (b"[12.5, 7]", (12.5, 7)),
    (b"[1, 2, 3]", None),
    (b'[1, "2"]', None),
    (b"[NaN, 1]", None),
    (b"NaN", None),
    (b"1e999", None),
    (b"1" + b"0" * 400, None),
    (b'{"a": 1}', None),
    (b"", None),
    (b"  \n", None),
    (b"\xff\xfe", None),
    (b"x" * 5000, None),
    (b"[" * 4000, "[" * 4000),
]


def test_a_file_holds_one_value_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "signal.txt"
    for content, expected in CONTENTS:
        path.write_bytes(content)

        assert FileSource(path)() == expected, content[:40]


def test_a_missing_file_reads_as_nothing_and_a_new_one_is_read_at_the_next_question(tmp_path: Path) -> None:
    source = FileSource(tmp_path / "signal.txt")

    before = source()
    (tmp_path / "signal.txt").write_text("1")

    assert (before, source()) == (None, 1)


@pytest.mark.parametrize("error", [SignalUnavailable(), OSError(), ValueError(), KeyError(), ZeroDivisionError()])
async def test_a_source_that_has_no_value_now_reads_as_nothing(error: Exception) -> None:
    def source() -> float:
        raise error

    assert await read_signal({"Vehicle.Speed": source}, "Vehicle.Speed") is None


async def test_a_mistake_in_the_owners_function_is_not_hidden() -> None:
    def source() -> float:
        raise TypeError("a bug")

    with pytest.raises(TypeError):
        await read_signal({"Vehicle.Speed": source}, "Vehicle.Speed")


async def test_a_signal_without_a_source_is_named() -> None:
    with pytest.raises(UsageError, match=r"Vehicle\.Speed"):
        await read_signal({"Vehicle.Name": constant("x")}, "Vehicle.Speed")

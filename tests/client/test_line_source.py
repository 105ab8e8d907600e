"""Lines of JSON of a file or a socket: the newest that speaks of the signal, fresh where it has a time, or nothing."""

import asyncio
import contextlib
import math
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path

import pytest
from fleetcount_client.config import load_settings
from fleetcount_client.line_source import LineSource, LineValue
from fleetcount_client.shapes import ShapedSource
from fleetcount_client.signals import Reading, Said, read_signal
from fleetcount_transport.toml_table import ConfigError

from tests.client.shells import free_port
from tests.client.test_config import GOOD, write
from tests.support.manual_clock import ManualClock

__all__ = ["write"]

SPEED = "Vehicle.Speed"
NOW = 1_000_000.0


async def said(place: Path | str, *keys: str, time: str = "", fresh_s: float = 5.0) -> Reading:
    source = LineSource(place, LineValue(keys=keys or (SPEED,), time=time, fresh_s=fresh_s), ManualClock(NOW))
    return await read_signal({SPEED: source}, SPEED)


async def read(place: Path | str, *keys: str, time: str = "") -> Said:
    return (await said(place, *keys, time=time)).value


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"Vehicle.Speed": 50}\n{"Vehicle.Speed": 61.5}\n', Decimal("61.5")),
        (b'\xef\xbb\xbf{"Vehicle.Speed": 61}\n', 61),
        (b'{"Vehicle.Speed": 61}\n{"Vehicle.Range": 3}\nnot json\n[1]\n', 61),
        (b'{"Vehicle.Speed": 61}\n{"Vehicle.Speed": null}\n', None),
        (b'{"Vehicle.Speed": 61}\n{"Vehicle.Speed": NaN}\n', None),
        (b'{"Vehicle.Speed": 61}\n{"Vehicle.Speed": 6', 61),
        (b'{"Vehicle.Speed": 61}\n{"Vehicle.Speed": 62}', 61),
        (b'{"Vehicle.Speed": 61}\r\n', 61),
        (b'{"Vehicle.Speed": "B"}\n', "B"),
        (b'{"Vehicle.Speed": [1, 2]}\n', (1, 2)),
        (b'{"Vehicle.Speed": 61}\n{"Vehicle.Speed": 62, "x": "' + b"y" * 4096 + b'"}\n', 61),
        (b'{"Vehicle.Speed": 61}\n' + b"[" * 4000 + b"\n", 61),
        (b'{"Vehicle.Speed": 61}\n' + b'{"Vehicle.Range": 3}\n' * 4000, None),
        (b"\xff\n", None),
        (b"", None),
    ],
)
async def test_the_newest_whole_line_of_a_file_that_speaks_of_the_signal_counts(
    tmp_path: Path, content: bytes, expected: object
) -> None:
    (tmp_path / "can.jsonl").write_bytes(content)

    assert await read(tmp_path / "can.jsonl") == expected


async def test_a_line_in_the_middle_of_which_the_tail_begins_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "can.jsonl"
    line = b'{"Vehicle.Speed": 1}\n'
    path.write_bytes(b"begun" + line + b" " * (65_536 - len(line) - 1) + b"\n")

    assert await read(path) is None


async def test_a_file_that_is_missing_or_a_pipe_reads_as_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    assert (await said(tmp_path / "missing")).why_none == "the file cannot be read (No such file or directory)"
    assert (await said(tmp_path / "pipe")).why_none == "it is no regular file"


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("999996", 2),
        ("1000004", 2),
        ("999994", 1),
        ("1000006", 1),
        ("null", 1),
        ('"1970-01-12T13:46:40Z"', 2),
        ('"1970-01-12T15:46:39.5+02:00"', 2),
        ('"1970-01-12T12:46:40Z"', 1),
    ],
)
async def test_a_line_of_another_time_is_passed_over(tmp_path: Path, moment: str, expected: int) -> None:
    rows = f'{{"t": {NOW}, "v": 1}}\n{{"v": 3}}\n{{"t": {moment}, "v": 2}}\n'
    (tmp_path / "can.jsonl").write_text(rows)

    assert await read(tmp_path / "can.jsonl", "v", time="t") == expected


async def test_two_members_are_a_position(tmp_path: Path) -> None:
    (tmp_path / "can.jsonl").write_text('{"y": 2.5, "x": 1}\n{"x": 7}\n')

    assert await read(tmp_path / "can.jsonl", "x", "y") == (1, Decimal("2.5"))


async def test_two_texts_are_no_position(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"x": "B", "y": "B"}\n')

    assert "a position is two numbers" in (await said(tmp_path / "a", "x", "y")).fault


@pytest.mark.parametrize("moment", ['"now"', '"1970-01-12T13:46:40"', "true", "1e999", "1000000000000", "[1]"])
async def test_a_time_that_is_no_moment_is_a_fault(tmp_path: Path, moment: str) -> None:
    (tmp_path / "can.jsonl").write_text(f'{{"t": {moment}, "v": 2}}\n')

    reading = await said(tmp_path / "can.jsonl", "v", time="t")

    assert reading == Reading(fault="the time of a line is neither Unix seconds nor a moment with its offset")


async def test_a_line_says_how_old_it_is_and_may_be_of_any_age(tmp_path: Path) -> None:
    (tmp_path / "can.jsonl").write_text('{"t": 900000, "v": true}\n')

    assert await said(tmp_path / "can.jsonl", "v", time="t", fresh_s=math.inf) == Reading(value=True, age_s=100_000)
    assert (await said(tmp_path / "can.jsonl", "v", time="t")).why_none == "no line of now speaks of it"


async def test_a_member_that_is_no_signal_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "can.jsonl").write_text('{"v": {"value": 63}}\n')

    assert (await said(tmp_path / "can.jsonl", "v")).fault == "it is a list or an object"


@asynccontextmanager
async def speaker(said: bytes, path: Path | None = None) -> AsyncIterator[str]:
    ended: list[asyncio.Event] = []

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended.append(asyncio.Event())
        end = ended[-1]
        with contextlib.suppress(OSError):
            writer.write(said)
            await writer.drain()
            await reader.read()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        end.set()

    if path is not None:
        server = await asyncio.start_unix_server(speak, path)
    else:
        server = await asyncio.start_server(speak, "127.0.0.1", 0)
    async with server:
        yield f"unix:{path}" if path is not None else f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    for end in ended:
        await end.wait()


async def test_the_first_line_of_a_socket_that_speaks_of_the_signal_counts(tmp_path: Path) -> None:
    long = b'{"Vehicle.Speed": 60, "x": "' + b"y" * 4096 + b'"}\n'
    said = long + b'{"Vehicle.Range": 3}\n{"Vehicle.Speed": 61}\n{"Vehicle.Speed": 62}\n'
    async with speaker(said) as by_port, speaker(said, tmp_path / "s") as by_path:
        assert [await read(by_port), await read(by_path)] == [61, 61]


async def test_a_socket_that_says_nothing_of_it_or_is_not_there_is_no_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetcount_client.line_source._TIMEOUT_S", 0.2)
    async with speaker(b'{"Vehicle.Range": 3}\n') as hangs, speaker(b"x" * 100_000) as endless:
        assert [await read(hangs), await read(endless)] == [None, None]
    assert await read(f"127.0.0.1:{free_port()}") is None
    assert await read(f"unix:{tmp_path}/none") is None


def test_the_configuration_says_which_lines(write: Callable[[str], Path], tmp_path: Path) -> None:
    def source(rows: str) -> object:
        shaped = load_settings(write(GOOD.replace('file = "speed.txt"', rows))).signals[SPEED]
        assert isinstance(shaped, ShapedSource)
        return shaped._source

    by_file = source('lines = "can.jsonl"\nkey = ["x", "y"]\ntime = "t"\nfresh_s = 5')
    by_port, by_path = source('socket = "127.0.0.1:9000"'), source('socket = "unix:/run/can.sock"')

    assert all(isinstance(one, LineSource) for one in (by_file, by_port, by_path))
    assert by_file._place == tmp_path / "can.jsonl"  # type: ignore[attr-defined]
    assert by_file._value == LineValue(keys=("x", "y"), time="t", fresh_s=5.0)  # type: ignore[attr-defined]
    assert (by_port._place, by_path._place) == ("127.0.0.1:9000", "unix:/run/can.sock")  # type: ignore[attr-defined]
    assert by_port._value == LineValue(keys=(SPEED,))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ('lines = "a"\nfile = "b"', r"has file and lines; allowed is exactly one"),
        ("", r"has no source; allowed is exactly one of file, value, lines, socket, kuksa"),
        ('socket = "10.0.0.1:9000"', r"socket is '10\.0\.0\.1:9000'.*this machine"),
        ('socket = "unix:can.sock"', r"socket is 'unix:can\.sock'"),
        ("socket = 9000", r"socket is 9000"),
        ('lines = "a"\nfresh_s = 5', r"fresh_s.*together with time"),
        ('lines = "a"\nkey = ["x"]', r"key is"),
        ('lines = "a"\nkey = 3', r"key is 3"),
        ('lines = "a"\nkeys = "x"', r"keys is unknown"),
        ('file = "a"\nkey = "x"', r"key is unknown"),
    ],
)
def test_a_wrong_line_about_lines_is_refused(write: Callable[[str], Path], rows: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_settings(write(GOOD.replace('file = "speed.txt"', rows)))

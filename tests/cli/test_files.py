"""Files of the command: what is no regular readable file is refused by name; outputs are whole or absent."""

import gzip
import os
from pathlib import Path

import pytest
from fleetcount.command.options import check_output_directory, read_bytes, read_text, write_file
from fleetcount.command.outputs import staged_directory
from fleetcount_protocol.errors import UsageError


def test_what_is_no_regular_file_is_refused_by_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()

    for name, reason in [("absent", "no such file"), (".", "a directory"), ("pipe", "a pipe"), ("empty", "0 bytes")]:
        with pytest.raises(UsageError, match=reason):
            read_bytes(tmp_path / name)
    with pytest.raises(UsageError, match="a device"):
        read_bytes(Path("/dev/null"))
    with pytest.raises(UsageError, match="cannot be read"):
        read_bytes(tmp_path / "a\0b")


def test_a_file_above_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as file:
        file.truncate(10**12)

    with pytest.raises(UsageError, match="1000000000000 bytes; it must have 1 to 100"):
        read_bytes(tmp_path / "big", largest=100)


def test_text_is_utf8_without_nul(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"a\xff")
    (tmp_path / "nul").write_bytes(b"ab\0c")

    with pytest.raises(UsageError, match=r"not UTF-8 text \(byte 1\)"):
        read_text(tmp_path / "latin")
    with pytest.raises(UsageError, match="NUL character at position 2"):
        read_text(tmp_path / "nul")


def test_a_packed_text_is_read_as_it_was_and_unpacked_no_further_than_allowed(tmp_path: Path) -> None:
    whole, packed = "ä numbers" * 100, tmp_path / "one.json.gz"
    packed.write_bytes(gzip.compress(whole.encode()))
    content = packed.read_bytes()

    assert read_text(packed) == whole
    assert read_text(packed, largest=len(whole.encode())) == whole
    with pytest.raises(UsageError, match="holds more than 999 bytes"):
        read_text(packed, largest=999)
    for damaged, reason in [
        (content[:-1], "its end is missing"),
        (content + b"x", "something stands behind it"),
        (content + content, "something stands behind it"),
        (whole.encode(), "is no gzip file"),
        (content[:-6] + b"\0" + content[-5:], "is no gzip file"),
    ]:
        packed.write_bytes(damaged)
        with pytest.raises(UsageError, match=reason):
            read_text(packed)


def test_a_private_file_appears_whole_with_its_mode_and_is_never_replaced(tmp_path: Path) -> None:
    write_file(tmp_path / "key", b"one", mode=0o600, overwrite=False)

    with pytest.raises(UsageError, match="exists already"):
        write_file(tmp_path / "key", b"two", mode=0o600, overwrite=False)

    assert (tmp_path / "key").read_bytes() == b"one"
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["key"]


def test_a_failed_run_leaves_the_output_as_it_was(tmp_path: Path) -> None:
    def fail() -> None:
        with staged_directory(tmp_path / "out") as stage:
            (stage / "half.csv").write_text("x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()

    assert list(tmp_path.iterdir()) == []


def test_a_finished_run_moves_every_file(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.csv").write_text("old")

    with staged_directory(tmp_path / "out") as stage:
        (stage / "a.csv").write_text("new")

    assert (tmp_path / "out" / "a.csv").read_text() == "new"
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_a_directory_that_is_there_is_filled_from_within(tmp_path: Path) -> None:
    # Its parent may be of another file system, as where a container mounts its output, or take no files.
    (tmp_path / "out").mkdir()

    with staged_directory(tmp_path / "out") as stage:
        (stage / "a.csv").write_text("new")
        check_output_directory(tmp_path / "out", fresh=True)
        assert stage.parent.samefile(tmp_path / "out")

    assert [file.name for file in (tmp_path / "out").iterdir()] == ["a.csv"]


def test_an_output_that_cannot_take_files_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")

    long = "x" * 250  # A name that is allowed, with no room for the ending of what is staged beside it.
    wrong = [("file", False), ("file/below", False), ("full", True), ("link", False), ("a\0b", False), (long, False)]
    for path, fresh in [*wrong, ("/proc/fleetcount", False)]:
        with pytest.raises(UsageError, match="output"):
            check_output_directory(tmp_path / path, fresh=fresh)

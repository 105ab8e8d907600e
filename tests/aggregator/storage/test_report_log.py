"""The log of a window's instalments: what a crash may tear, what damage is, and that no promise comes before the
disk.
"""

import errno
import os
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fleetcount_aggregator.storage import report_log
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.file_backend import DigestFile
from fleetcount_aggregator.storage.file_frames import FileFrames
from fleetcount_aggregator.storage.frames import DigestRecords
from fleetcount_aggregator.storage.instalment_run import StoreOutcome
from fleetcount_aggregator.storage.log_format import FILE_HEADER_BYTES, HEAD_BYTES, MOST_ROWS, FrameHead, NewFrame
from fleetcount_aggregator.storage.report_log import ReportLog
from fleetcount_protocol.ids import Digest, ReportId, WindowId

from tests.support.instalments import StoredInstalment, outcomes_of, runs_of
from tests.support.nightly import NIGHTLY
from tests.support.oracle import included_in

WINDOW = WindowId(b"t" * 32)
KEY = bytes(range(32))


def row(number: int, round_number: int = 1, *, part: bytes = b"", device: int | None = None) -> StoredInstalment:
    return StoredInstalment(
        window_id=WINDOW,
        report_id=ReportId(number.to_bytes(16)),
        round=round_number,
        certificate=Digest((number if device is None else device).to_bytes(32)),
        digest=Digest(bytes((round_number,)) + number.to_bytes(31)),
        public_share=b"p" * 64 if round_number == 2 else b"",
        part=part or b"part %d of report %5d" % (round_number, number),
        expected=2,
    )


def path_of(directory: Path) -> Path:
    return directory / "window.log"


def new_log(directory: Path) -> ReportLog:
    return ReportLog(FileFrames(path_of(directory), WINDOW, KEY), WINDOW, KEY, 2)


def opened(directory: Path, closed_length: int | None = None) -> ReportLog:
    log = ReportLog.open(FileFrames(path_of(directory), WINDOW, KEY, closed_length), WINDOW, KEY)
    assert log is not None
    return log


def store(log: ReportLog, *rows: StoredInstalment) -> list[StoreOutcome]:
    """Store a group."""
    outcomes = outcomes_of(log.decide(runs_of(rows), is_open=True))
    log.write()
    return outcomes


def held(log: ReportLog, numbers: range) -> list[tuple[int, int]]:
    return [(n, r) for n in numbers for r in (1, 2) if log.digest(ReportId(n.to_bytes(16)), r) is not None]


def filled(directory: Path, groups: int = 3) -> tuple[ReportLog, list[int]]:
    """Return a log of groups of both rounds of four reports each, and the file's length after each group."""
    log, lengths = new_log(directory), []
    for group in range(groups):
        numbers = range(4 * group, 4 * group + 4)
        store(log, *(row(number, one) for number in numbers for one in (1, 2)))
        lengths.append(log.length)
    return log, lengths


def encoded(blocks: Iterable[DigestRecords]) -> Iterable[bytes]:
    return (block.encode() for block in blocks)


def parts(log: ReportLog) -> dict[bytes, bytes]:
    complete = log.complete()
    loaded = complete.source(np.arange(len(complete.ids))).load()
    size = len(loaded.batch.input_shares) // max(1, loaded.batch.count)
    nonces, shares = loaded.batch.nonces, bytes(loaded.batch.input_shares)
    return {nonces[16 * at : 16 * at + 16]: shares[size * at : size * at + size] for at in range(loaded.batch.count)}


# What is there is there again.


def test_everything_reads_back_after_opening_again(tmp_path: Path) -> None:
    log, _ = filled(tmp_path)
    before = parts(log)
    log.close()

    again = opened(tmp_path)

    assert parts(again) == before
    assert len(before) == 12
    assert before[(5).to_bytes(16)] == b"part 1 of report     5part 2 of report     5"
    assert store(again, row(5), row(5, 2, device=9), row(100)) == [
        StoreOutcome.SAME,
        StoreOutcome.OTHER_BYTES,
        StoreOutcome.STORED,
    ]
    assert again.memory_bytes > 0


def test_parts_of_other_sizes_and_rounds_in_any_order_come_back_too(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    rows = [row(n, one, part=bytes((n, one)) * (1 + n % 3)) for n in range(60) for one in (2, 1)]
    random.Random(7).shuffle(rows)
    for start in range(0, len(rows), 13):
        store(log, *rows[start : start + 13])
    log.close()

    again = opened(tmp_path)
    complete = again.complete()

    for position in range(60):
        loaded = complete.source(np.array([position])).load()
        number = int.from_bytes(loaded.batch.nonces)
        assert bytes(loaded.batch.input_shares) == bytes((number, 1)) * (1 + number % 3) + bytes((number, 2)) * (
            1 + number % 3
        )


def test_reports_have_the_same_positions_live_and_read_again(tmp_path: Path) -> None:
    """What is stored of a batch names positions: a restart must not give them to other reports."""
    log = new_log(tmp_path)
    store(log, row(1, 2), row(2, 1), row(3, 2), row(3, 1), row(4, 1), row(1, 1))
    store(log, row(4, 2), row(2, 2))
    live = log.complete().ids.joined
    log.close()

    assert opened(tmp_path).complete().ids.joined == live


def test_many_small_frames_of_both_rounds_read_back_as_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_log, "_ROWS_AT_ONCE", 7)
    log = new_log(tmp_path)
    order = random.Random(11).sample([(number, one) for number in range(60) for one in (1, 2)], 117)
    for number, one in order:
        store(log, row(number, one))
    live = log.complete().ids.joined
    log.close()

    again = opened(tmp_path)

    assert again.complete().ids.joined == live
    assert again.row_count == 117
    assert store(again, *(row(number, one) for number, one in order)) == [StoreOutcome.SAME] * 117
    left = sorted({(number, one) for number in range(60) for one in (1, 2)} - set(order))
    assert store(again, *(row(number, one) for number, one in left)) == [StoreOutcome.STORED] * 3


@pytest.mark.parametrize("numbers", [(1, 1), (1, 2, 3, 2), (1, 2, 3, 4, 1)])
def test_an_instalment_that_lies_there_twice_is_damage_however_far_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, numbers: Sequence[int]
) -> None:
    monkeypatch.setattr(report_log, "_ROWS_AT_ONCE", 3)
    frames = FileFrames(tmp_path / "log", WINDOW, KEY)
    new = [
        NewFrame(runs_of([row(number)]), sequence=at, group=at, log_key=KEY, salt=bytes((at,)) * 32)
        for at, number in enumerate(numbers)
    ]
    frames.append(new, 2)

    frames.close()

    with pytest.raises(StoreError, match="is there twice"), closing(FileFrames(tmp_path / "log", WINDOW, KEY)) as again:
        ReportLog.open(again, WINDOW, KEY)


def test_a_group_larger_than_a_frame_is_stored_in_several(tmp_path: Path) -> None:
    log = new_log(tmp_path)

    store(log, *(row(number, part=b"x") for number in range(MOST_ROWS + 10)))
    log.close()

    assert opened(tmp_path).digest(ReportId((MOST_ROWS + 9).to_bytes(16)), 1) is not None


def test_no_part_and_no_digest_of_a_key_lies_open(tmp_path: Path) -> None:
    filled(tmp_path)

    data = path_of(tmp_path).read_bytes()

    assert b"part 1 of" not in data
    assert KEY not in data
    assert path_of(tmp_path).stat().st_mode & 0o777 == 0o600


def test_two_logs_of_the_same_rows_have_nothing_sealed_in_common(tmp_path: Path) -> None:
    """Every frame has its own key: the same part in the same place is another ciphertext."""
    other = tmp_path / "other"
    other.mkdir()
    for directory in (tmp_path, other):
        filled(directory, 1)
    files = [path_of(directory).read_bytes() for directory in (tmp_path, other)]
    head = FrameHead.decode(files[0][FILE_HEADER_BYTES : FILE_HEADER_BYTES + HEAD_BYTES], KEY)
    assert head is not None

    sealed = [data[FILE_HEADER_BYTES + head.parts_at : FILE_HEADER_BYTES + head.frame_bytes] for data in files]

    starts = range(0, len(sealed[0]), 16)
    assert not any(sealed[0][at : at + 16] == sealed[1][at : at + 16] for at in starts)


# What a crash leaves.


def test_any_torn_end_is_cut_and_the_groups_before_it_stay(tmp_path: Path) -> None:
    log, lengths = filled(tmp_path)
    data = path_of(tmp_path).read_bytes()
    log.close()

    # Every length at the borders of what a frame holds, and in between each thirteenth; all of them in a night.
    edges = {*range(lengths[1], lengths[1] + HEAD_BYTES + 8), *range(lengths[2] - 40, lengths[2])}
    for length in range(lengths[1], lengths[2]):
        if not NIGHTLY and length not in edges and length % 13:
            continue
        path_of(tmp_path).write_bytes(data[:length])
        again = opened(tmp_path)
        kept = held(again, range(12))
        assert kept[:16] == [(n, r) for n in range(8) for r in (1, 2)]
        assert path_of(tmp_path).stat().st_size == again.length <= length
        again.close()


@pytest.mark.parametrize("fill", [b"\0", b"\xff"])
def test_a_last_group_whose_blocks_never_came_is_cut(tmp_path: Path, fill: bytes) -> None:
    """After a power failure a file may have its new length, and blocks in it that were not written."""
    log, lengths = filled(tmp_path)
    data = path_of(tmp_path).read_bytes()
    log.close()

    for start in (lengths[1], *range((lengths[1] // 512 + 1) * 512, lengths[2], 512)):
        end = min(lengths[2], (start // 512 + 1) * 512)
        torn = data[:start] + fill * (end - start) + data[end:]
        path_of(tmp_path).write_bytes(torn)
        again = opened(tmp_path)
        assert held(again, range(8)) == [(n, r) for n in range(8) for r in (1, 2)]
        complete = again.complete()
        assert complete.source(np.arange(len(complete.ids))).load().damaged == (), "what is kept is whole"
        assert store(again, row(8), row(300)) in ([StoreOutcome.STORED] * 2, [StoreOutcome.SAME, StoreOutcome.STORED])
        again.close()


def test_a_torn_first_group_leaves_no_log(tmp_path: Path) -> None:
    log, _ = filled(tmp_path, 1)
    data = path_of(tmp_path).read_bytes()
    log.close()

    for torn in (b"", data[:10], bytes(200)):
        path_of(tmp_path).write_bytes(torn)
        assert ReportLog.open(FileFrames(path_of(tmp_path), WINDOW, KEY), WINDOW, KEY) is None
        assert not path_of(tmp_path).exists()


def test_what_is_read_again_is_on_the_disk_before_it_is_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After kill -9 the last group may be in the cache alone: its repeat would get a receipt without a sync."""
    filled(tmp_path)[0].close()
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)

    opened(tmp_path)

    assert len(synced) == 1


def test_a_device_cannot_make_a_torn_end_look_like_damage(tmp_path: Path) -> None:
    """Public shares lie open: one that looks like a later frame's head must not keep the log from opening."""
    log, _ = filled(tmp_path)
    head = FrameHead.decode(path_of(tmp_path).read_bytes()[FILE_HEADER_BYTES : FILE_HEADER_BYTES + HEAD_BYTES], KEY)
    assert head is not None
    planted = replace(head, sequence=2**40, group=2**40).encode(b"not the log's key, which no device knows")
    store(log, replace(row(50), public_share=planted))
    log.close()
    os.truncate(path_of(tmp_path), path_of(tmp_path).stat().st_size - 1)

    assert held(opened(tmp_path), range(51)) == [(n, r) for n in range(12) for r in (1, 2)]


# What is damage.


def test_damage_in_a_last_group_of_which_all_was_written_is_named(tmp_path: Path) -> None:
    """Its receipts may have been given: between its sync and the note of how much is durable lies a second."""
    log, lengths = filled(tmp_path)
    data = path_of(tmp_path).read_bytes()
    log.close()
    assert len(data) == lengths[2]
    places = range(lengths[1], lengths[2], 7)
    assert {in_parts(data, place) for place in places} == {True, False}

    for place in places:
        path_of(tmp_path).write_bytes(data[:place] + bytes((data[place] ^ 1,)) + data[place + 1 :])
        if in_parts(data, place):
            complete = opened(tmp_path).complete()
            assert complete.source(np.arange(12)).load().damaged, "as in every group, when they are loaded"
        else:
            with pytest.raises(StoreError, match=r"window\.log is damaged at byte \d+"):
                opened(tmp_path)
        assert path_of(tmp_path).stat().st_size == len(data), "left as it is"


def test_damage_before_the_last_group_is_an_error_that_names_the_place(tmp_path: Path) -> None:
    log, lengths = filled(tmp_path)
    data = path_of(tmp_path).read_bytes()
    log.close()
    columns = [place for place in range(FILE_HEADER_BYTES, lengths[1], 97) if not in_parts(data, place)]
    assert len(columns) > 5

    for place in columns:
        path_of(tmp_path).write_bytes(data[:place] + bytes((data[place] ^ 1,)) + data[place + 1 :])
        with pytest.raises(StoreError, match=r"window\.log is damaged at byte \d+") as caught:
            opened(tmp_path)
        assert int(str(caught.value).split("at byte ")[1].split(":")[0]) <= place
        assert path_of(tmp_path).stat().st_size == len(data), "left as it is"


def in_parts(data: bytes, place: int) -> bool:
    offset = FILE_HEADER_BYTES
    while True:
        head = FrameHead.decode(data[offset : offset + HEAD_BYTES], KEY)
        assert head is not None
        if place < offset + head.frame_bytes:
            return place >= offset + head.parts_at
        offset += head.frame_bytes


@pytest.mark.parametrize(
    ("part_bytes", "block", "damaged"), [(5000, 2, (2,)), (2000, 1, (2, 3)), (100, 0, (0, 1, 2, 3, 4))]
)
def test_a_damaged_part_is_found_when_it_is_loaded_and_spoils_its_block_alone(
    tmp_path: Path, part_bytes: int, block: int, damaged: tuple[int, ...]
) -> None:
    """A block is what a disk loses at once: 4,096 bytes, or one part that is larger."""
    log = new_log(tmp_path)
    store(log, *(row(number, 1, part=bytes((number,)) * part_bytes) for number in range(5)))
    store(log, *(row(number, 2) for number in range(5)))
    head = FrameHead.decode(path_of(tmp_path).read_bytes()[FILE_HEADER_BYTES : FILE_HEADER_BYTES + HEAD_BYTES], KEY)
    assert head is not None
    with path_of(tmp_path).open("r+b") as file:
        file.seek(FILE_HEADER_BYTES + head.block_at(block))
        file.write(b"\xff\xee")

    loaded = log.complete().source(np.arange(5)).load()

    assert loaded.damaged == damaged
    assert loaded.batch.nonces == b"".join(n.to_bytes(16) for n in range(5) if n not in damaged)


@pytest.mark.parametrize("part_bytes", [30, 1000, 5000])
def test_any_choice_of_reports_is_loaded_in_its_order(tmp_path: Path, part_bytes: int) -> None:
    """From several frames, of many blocks and one, with the rounds in other orders, near each other and far apart."""
    source = random.Random(part_bytes)
    log = new_log(tmp_path)
    for round_number in (1, 2):
        numbers = source.sample(range(300), 300)
        for start, end in ((0, 7), (7, 300)):
            store(log, *(row(n, round_number, part=_part(n, round_number, part_bytes)) for n in numbers[start:end]))
    complete = log.complete()

    for count in (1, 2, 40, 300):
        positions = np.array(source.sample(range(300), count))
        loaded = complete.source(positions).load()

        ids = [complete.ids.at(positions[at : at + 1]) for at in range(count)]
        chosen = [int.from_bytes(one) for one in ids]
        expected = b"".join(_part(n, 1, part_bytes) + _part(n, 2, part_bytes) for n in chosen)
        assert loaded.batch.nonces == b"".join(ids)
        assert loaded.batch.input_shares == expected
        assert loaded.batch.public_shares == b"p" * 64 * count
        assert loaded.damaged == ()


def _part(number: int, round_number: int, size: int) -> bytes:
    return (b"%d of %d|" % (round_number, number)).ljust(size, b"*")


def test_an_instalment_under_another_id_than_asked_for_is_damaged(tmp_path: Path) -> None:
    log, _ = filled(tmp_path)
    source = log.complete().source(np.arange(5))

    wrong = replace(source, ids=source.ids[:16] + source.ids[32:48] + source.ids[16:32] + source.ids[48:])

    assert wrong.load().damaged == (1, 2)


def test_instalments_of_two_sizes_in_one_batch_are_no_batch(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for number in range(2):
        store(log, *(row(number, one, part=bytes(10 + number)) for one in (1, 2)))

    with pytest.raises(StoreError, match="several sizes"):
        log.complete().source(np.arange(2)).load()


@pytest.mark.parametrize("column", ["id", "public share"])
def test_a_part_belongs_to_its_report_and_its_public_share(tmp_path: Path, column: str) -> None:
    log = new_log(tmp_path)
    store(log, *(row(number, one) for one in (1, 2) for number in range(3)))
    head = FrameHead.decode(path_of(tmp_path).read_bytes()[FILE_HEADER_BYTES : FILE_HEADER_BYTES + HEAD_BYTES], KEY)
    assert head is not None
    second = FILE_HEADER_BYTES + head.frame_bytes
    frame = FrameHead.decode(path_of(tmp_path).read_bytes()[second : second + HEAD_BYTES], KEY)
    assert frame is not None
    with path_of(tmp_path).open("r+b") as file:
        file.seek(second + (frame.id_at(1) if column == "id" else frame.public_at(1)))
        file.write(b"\xff\xee")

    assert log.complete().source(np.arange(3)).load().damaged == (0, 1, 2)


def test_a_closed_log_is_never_cut(tmp_path: Path) -> None:
    log, lengths = filled(tmp_path)
    log.close()
    with path_of(tmp_path).open("r+b") as file:
        file.truncate(lengths[2] - 1)

    with pytest.raises(StoreError, match="intake closed with another length"):
        opened(tmp_path, lengths[2])

    assert path_of(tmp_path).stat().st_size == lengths[2] - 1


@pytest.mark.parametrize(
    ("window_id", "key", "what"),
    [(WindowId(b"u" * 32), KEY, "another window"), (WINDOW, bytes(32), "another key")],
)
def test_the_log_of_another_window_or_key_is_refused(
    tmp_path: Path, window_id: WindowId, key: bytes, what: str
) -> None:
    log, _ = filled(tmp_path)
    log.close()
    before = path_of(tmp_path).read_bytes()

    with pytest.raises(StoreError, match=what):
        ReportLog.open(FileFrames(path_of(tmp_path), window_id, key), window_id, key)

    assert path_of(tmp_path).read_bytes() == before


# Disk full.


def full_after(count: int) -> Callable[[int, Any, int], int]:
    """Return a pwrite that takes `count` bytes and then says that the disk is full."""
    honest, left = os.pwrite, [count]

    def pwrite(descriptor: int, data: Any, offset: int) -> int:
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = honest(descriptor, data[: left[0]], offset)
        left[0] -= written
        return written

    return pwrite


@pytest.mark.parametrize("room", [0, 1, 50, 700])
@pytest.mark.parametrize("groups", [0, 2])
def test_a_full_disk_promises_nothing_and_later_writes_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, groups: int
) -> None:
    log, _ = filled(tmp_path, groups)
    length, before = log.length, held(log, range(100))
    rows = [row(number, one) for number in (50, 2, 51) for one in (1, 2)]
    monkeypatch.setattr(os, "pwrite", full_after(room))

    with pytest.raises(StoreError, match="No space"):
        store(log, *rows)

    assert held(log, range(100)) == before
    assert not path_of(tmp_path).exists() or path_of(tmp_path).stat().st_size == length
    monkeypatch.undo()
    expected = [StoreOutcome.SAME if groups and one.report_id[-1] == 2 else StoreOutcome.STORED for one in rows]
    assert store(log, *rows) == expected
    log.close()
    assert (51, 2) in held(opened(tmp_path), range(100))


def test_a_sync_that_fails_promises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = filled(tmp_path)

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(StoreError, match="Input/output"):
        store(log, row(70))
    monkeypatch.undo()

    assert log.digest(ReportId((70).to_bytes(16)), 1) is None
    assert store(log, row(70)) == [StoreOutcome.STORED]


def test_what_could_not_be_cut_off_does_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed group leaves two whole frames; the next group is as long as the first of them."""
    log, _ = filled(tmp_path)

    def fail(*_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    monkeypatch.setattr(os, "ftruncate", fail)
    with pytest.raises(StoreError, match="Input/output"):
        store(log, row(70), row(71, 2))
    monkeypatch.undo()
    store(log, row(72))
    log.close()

    assert held(opened(tmp_path), range(70, 73)) == [(72, 1)]


def test_what_waits_is_not_shown_before_it_is_durable(tmp_path: Path) -> None:
    log, _ = filled(tmp_path)

    assert log.decide(runs_of([row(70), row(70)]), is_open=True) == [bytes((StoreOutcome.STORED, StoreOutcome.SAME))]
    assert log.decide(runs_of([row(70)]), is_open=True) == [bytes((StoreOutcome.SAME,))]
    assert log.digest(ReportId((70).to_bytes(16)), 1) is None

    log.write()
    assert log.digest(ReportId((70).to_bytes(16)), 1) == row(70).digest


def test_a_part_too_long_for_any_window_is_refused_whole(tmp_path: Path) -> None:
    log = new_log(tmp_path)

    with pytest.raises(StoreError, match="too long"):
        store(log, row(1), replace(row(2), part=bytes(300_000)))

    assert store(log, row(1)) == [StoreOutcome.STORED]


# After the end.


def test_digests_of_an_ended_window_are_found_in_their_file(tmp_path: Path) -> None:
    log, _ = filled(tmp_path, 5)
    chosen = bytes(number % 2 for number in range(20))
    file = DigestFile(tmp_path / "window.digests", WINDOW)

    file.write(log.row_count, encoded(log.records(chosen)))

    for number in range(20):
        for one in (1, 2):
            found = file.find(ReportId(number.to_bytes(16)), one)
            assert found is not None
            assert (found.digest, found.certificate) == (row(number, one).digest, row(number, one).certificate)
    assert file.find(ReportId((20).to_bytes(16)), 1) is None
    assert file.find(ReportId((3).to_bytes(16)), 0) is None
    assert included_in(file.records()) == {ReportId(number.to_bytes(16)) for number in range(1, 20, 2)}
    assert (tmp_path / "window.digests").stat().st_mode & 0o777 == 0o600


def test_digests_are_durable_with_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever moves a store deletes nothing beside them, and so syncs no directory afterwards."""
    log, _ = filled(tmp_path, 1)
    real, names = os.fsync, list[list[str]]()

    def fsync(descriptor: int) -> None:
        real(descriptor)
        if os.path.sameopenfile(descriptor, directory):
            names.append([path.name for path in tmp_path.glob("*.digests")])

    directory = os.open(tmp_path, os.O_RDONLY)
    monkeypatch.setattr(os, "fsync", fsync)
    DigestFile(tmp_path / "window.digests", WINDOW).write(log.row_count, encoded(log.records(b"")))

    assert names == [["window.digests"]]
    os.close(directory)


def test_digests_of_half_reports_in_any_order_are_found_too(tmp_path: Path) -> None:
    """Of 9,000 reports, more than are written at once, some lack a round; the set is about the complete ones."""
    source = random.Random(4)
    log = new_log(tmp_path)
    numbers = source.sample(range(9000), 9000)
    for one in (2, 1):
        source.shuffle(numbers)
        store(log, *(row(number, one) for number in numbers if number % 5 != one))
    whole = log.complete()
    chosen = bytes(whole.ids.at(np.array([at]))[-1] % 2 for at in range(len(whole.ids)))
    file = DigestFile(tmp_path / "window.digests", WINDOW)

    file.write(log.row_count, encoded(log.records(chosen)))

    for number in [*source.sample(range(9000), 300), *range(10)]:
        for one in (1, 2):
            found = file.find(ReportId(number.to_bytes(16)), one)
            assert (found is not None) == (number % 5 != one)
            if found is not None:
                assert (found.digest, found.certificate) == (row(number, one).digest, row(number).certificate)
    expected = {number for number in range(9000) if number % 5 not in {1, 2} and number % 256 % 2}
    assert included_in(file.records()) == {ReportId(number.to_bytes(16)) for number in expected}


def test_digests_that_are_fewer_than_said_are_no_file(tmp_path: Path) -> None:
    log, _ = filled(tmp_path)
    path = tmp_path / "window.digests"

    with pytest.raises(StoreError, match="are not there"):
        DigestFile(path, WINDOW).write(log.row_count + 1, encoded(log.records(b"")))

    assert sorted(one.name for one in tmp_path.iterdir()) == ["window.log"]


def test_a_damaged_digest_file_says_so(tmp_path: Path) -> None:
    log, _ = filled(tmp_path)
    path = tmp_path / "window.digests"
    DigestFile(path, WINDOW).write(log.row_count, encoded(log.records(b"")))
    path.write_bytes(path.read_bytes()[:3] + b"x" + path.read_bytes()[4:])

    with pytest.raises(StoreError, match="damaged"):
        DigestFile(path, WINDOW).find(ReportId(bytes(16)), 1)


def test_digests_of_no_reports_are_an_empty_file(tmp_path: Path) -> None:
    file = DigestFile(tmp_path / "window.digests", WINDOW)

    file.write(0, ())

    assert file.find(ReportId(bytes(16)), 1) is None
    assert included_in(file.records()) == set()


def test_digests_are_there_though_all_of_a_round_could_not_be_written(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    assert store(log, row(1), row(2)) == [StoreOutcome.STORED] * 2
    log.decide(runs_of([row(1, 2)]), is_open=True)
    log.drop()

    assert len(log._index) == log.incomplete
    assert b"".join(encoded(log.records(b""))) == b"".join(encoded(opened(tmp_path).records(b"")))

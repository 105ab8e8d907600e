"""Intakes that own nothing: each appends to a lane of its own, and who counts once is decided when a window closes."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("psycopg", reason="needs psycopg (the extra fleetcount[postgres])")

from fleetcount_aggregator.storage import postgres_frames, report_index, report_log
from fleetcount_aggregator.storage.errors import FencedError, StoreBusyError
from fleetcount_aggregator.storage.instalment_run import StoreOutcome
from fleetcount_aggregator.storage.postgres import PostgresDatabase, Server
from fleetcount_aggregator.storage.postgres_backend import close_lanes
from fleetcount_aggregator.storage.postgres_frames import RetryingLink
from fleetcount_aggregator.storage.row_types import WindowChange, WindowRow
from fleetcount_aggregator.storage.rows import read_rejections
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import Digest, ReportId, WindowId
from fleetcount_protocol.messages import WindowState

from tests.support.instalments import StoredInstalment
from tests.support.replica_stores import ReplicaStore, replica_store

WINDOW = WindowId(b"t" * 32)
CLOSE = WindowChange(window_id=WINDOW, required=frozenset({WindowState.COLLECTING}), new_state=WindowState.AGREEING)
STORED, SAME, CLOSED = StoreOutcome.STORED, StoreOutcome.SAME, StoreOutcome.CLOSED
OTHER, SECOND = StoreOutcome.OTHER_BYTES, StoreOutcome.SECOND_REPORT
Pair = tuple[ReplicaStore, ReplicaStore]


@pytest.fixture
async def pair(postgres_url: str, tmp_path: Path) -> AsyncIterator[Pair]:
    """Two processes over one database with one open window; the first coordinates."""
    async with AsyncExitStack() as opened:
        one, two = [await opened.enter_async_context(replica_store(postgres_url, tmp_path)) for _ in range(2)]
        one.lead()
        row = WindowRow(
            window_id=WINDOW,
            canonical=b"window",
            verify_key=b"",
            state=WindowState.COLLECTING,
            abort_reason="",
            installed_at=7,
        )
        await asyncio.to_thread(one.store.data_keys.make, WINDOW)
        await one.store.decide_windows((), row)
        yield one, two


def instalment(number: int, round_number: int = 0, *, report: int = 0, content: int = 0) -> StoredInstalment:
    """Return an instalment of a device; an honest one has one report with one content."""
    return StoredInstalment(
        window_id=WINDOW,
        report_id=ReportId(number.to_bytes(2) * 4 + report.to_bytes(8)),
        round=round_number,
        certificate=Digest(number.to_bytes(32)),
        digest=Digest(bytes((round_number, content)) + number.to_bytes(30)),
        public_share=b"p" * 8 if round_number != 1 else b"",
        part=part(number, round_number),
        expected=2 if round_number else 1,
    )


def part(number: int, round_number: int) -> bytes:
    return b"part %d of %3d" % (round_number, number)


async def numbers(replica: ReplicaStore) -> list[int]:
    """Return whose reports are complete, by position."""
    joined = (await replica.store.complete_reports(WINDOW)).ids.joined
    return [int.from_bytes(joined[at : at + 2]) for at in range(0, len(joined), ReportId.SIZE)]


async def lanes(replica: ReplicaStore) -> list[tuple[Any, ...]]:
    return await replica.link.rows("SELECT lane, seq, closed FROM lanes ORDER BY lane")


async def test_what_two_intakes_took_is_counted_once_whichever_of_them_took_it(pair: Pair, tmp_path: Path) -> None:
    one, two = pair
    assert await lanes(one) == [], "no lane before the first frame"
    assert await one.give([instalment(n) for n in range(8)]) == [STORED] * 8
    assert await two.give([instalment(n) for n in range(4, 12)]) == [STORED] * 8, "it knows nothing of the other's"
    assert await two.give([instalment(n) for n in range(4, 12)]) == [SAME] * 8
    assert await lanes(one) == [(0, 1, False), (1, 1, False)]

    await one.store.apply(CLOSE)

    assert await numbers(one) == list(range(12))
    assert await numbers(two) == await numbers(one)
    for replica in pair:
        assert await replica.give([instalment(n) for n in range(14)]) == [SAME] * 12 + [CLOSED] * 2
        assert await replica.give([instalment(3, content=9)]) == [OTHER]
    loaded = (await two.store.complete_reports(WINDOW)).source(np.arange(12)).load()
    assert loaded.batch.input_shares == b"".join(part(n, 0) for n in range(12))
    assert loaded.damaged == ()
    assert await one.store.read(read_rejections, WINDOW) == {}


async def test_rounds_of_one_report_come_together_from_different_lanes(pair: Pair) -> None:
    one, two = pair
    await one.give([instalment(n, 1) for n in range(6)])
    await two.give([instalment(n, 2) for n in (3, 1, 0)])
    await one.give([instalment(2, 2)])
    await two.give([instalment(7, 2)])

    await one.store.apply(CLOSE)

    assert await numbers(two) == [0, 1, 2, 3]
    loaded = (await two.store.complete_reports(WINDOW)).source(np.array([3, 0])).load()
    assert loaded.batch.input_shares == b"".join(part(n, one) for n in (3, 0) for one in (1, 2))
    assert await one.store.read(read_rejections, WINDOW) == {RejectReason.HALF_PAIR: 3}


@pytest.mark.parametrize("second", [{"report": 1}, {"content": 1}])
async def test_a_device_with_two_different_reports_counts_in_neither_and_is_refused_where_one_sees_both(
    pair: Pair, second: dict[str, int]
) -> None:
    one, two = pair
    both = instalment(5), instalment(5, **second)
    assert await one.give([instalment(n) for n in range(4)]) == [STORED] * 4
    assert await one.give([both[0]]) == [STORED]
    assert await one.give([both[1]]) == [SECOND if "report" in second else OTHER]
    assert await two.give([both[1], instalment(6)]) == [STORED] * 2

    await one.store.apply(CLOSE)

    for replica in pair:
        assert await numbers(replica) == [0, 1, 2, 3, 6]
    assert await one.store.read(read_rejections, WINDOW) == {RejectReason.DUPLICATE_OTHER_BYTES: 1}


async def test_two_different_second_parts_leave_a_device_out_too(pair: Pair) -> None:
    one, two = pair
    await one.give([instalment(n, one) for n in range(3) for one in (1, 2)])
    await two.give([instalment(1, 1), instalment(1, 2, content=4), instalment(2, 2)])

    await one.store.apply(CLOSE)

    assert await numbers(two) == [0, 2]


async def test_a_device_that_cheats_within_one_lane_s_copy_is_left_out_by_every_reader(pair: Pair) -> None:
    """Copies and a second report in one batch that is joined: whose first lane it is makes no difference."""
    one, two = pair
    await one.give([instalment(1), instalment(2)])
    await two.give([instalment(2), instalment(1, report=1), instalment(3)])
    await one.store.apply(CLOSE)
    assert await numbers(one) == await numbers(two) == [2, 3]


async def test_a_restart_makes_another_lane_and_reads_nothing_back(
    pair: Pair, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair
    await two.give([instalment(n) for n in range(20)])
    read = list[str]()
    rows = postgres_frames.PostgresFrames._rows
    monkeypatch.setattr(postgres_frames.PostgresFrames, "_rows", lambda *which: read.append("columns") or rows(*which))
    async with replica_store(postgres_url, tmp_path) as again:
        assert await again.give([instalment(n) for n in range(15, 30)]) == [STORED] * 15
        assert read == []
        assert [lane for lane, _, _ in await lanes(one)] == [0, 1]

    await one.store.apply(CLOSE)
    assert await numbers(one) == list(range(30))


async def test_what_another_intake_took_gets_its_receipt_again_when_it_is_late(pair: Pair) -> None:
    one, two = pair
    rows = [instalment(n, 1) for n in range(5)]
    asked = [row.report_id for row in rows]
    await one.give(rows[:3])
    await two.give(rows[3:4])
    digests = [row.digest for row in rows]
    assert await two.store.instalment_digests(WINDOW, asked, 1) == [*digests[:4], None]
    await one.give(rows[4:])
    assert await two.store.instalment_digests(WINDOW, asked, 1) == digests, "what has come since is found too"

    await one.store.apply(CLOSE)
    assert await two.store.instalment_digests(WINDOW, asked, 1) == digests
    assert await two.store.instalment_digests(WINDOW, asked, 2) == [None] * 5


async def test_what_was_joined_while_the_window_was_open_is_joined_anew_when_it_is_closed(pair: Pair) -> None:
    """Else positions, and who counts, would be one process's own."""
    one, two = pair
    await two.give([instalment(5)])
    assert await two.store.instalment_digests(WINDOW, [instalment(1).report_id], 0) == [None]
    await one.give([instalment(1), instalment(2)])
    await two.give([instalment(4), instalment(2, content=1)])
    assert len(await two.store.instalment_digests(WINDOW, [instalment(9).report_id], 0)) == 1

    await one.store.apply(CLOSE)

    assert await numbers(two) == await numbers(one) == [5, 4, 1]


async def test_a_closed_lane_takes_nothing_and_gives_no_receipt(pair: Pair) -> None:
    one, two = pair
    await two.give([instalment(1)])
    await asyncio.to_thread(one.engine.write_blocking, lambda db: close_lanes(db, WINDOW))  # Not moved yet.

    for replica in pair:
        with pytest.raises(StoreBusyError, match="takes nothing"):
            await replica.give([instalment(2)])
    await one.store.apply(CLOSE)
    assert await numbers(two) == [1]


async def test_a_lane_that_is_being_made_while_the_window_is_closed_is_counted(
    pair: Pair, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its receipt may be given: whoever closes waits for it, and looks for lanes after that."""
    one, two = pair
    await one.give([instalment(1)])
    making = Server(url=postgres_url).connect()
    making.execute(b"BEGIN")
    db = PostgresDatabase(making)
    [(lane,)] = db.execute(postgres_frames._MAKE, (bytes(WINDOW),)).fetchall()

    closing = asyncio.create_task(one.store.apply(CLOSE))
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE intakes%%'"
    async with asyncio.timeout(30):
        while (await two.link.rows(waits))[0][0] == 0:
            await asyncio.sleep(0.01)
    making.execute(b"COMMIT")
    making.close()
    await closing

    assert await two.link.rows("SELECT closed FROM lanes WHERE lane = %s", lane) == [(True,)]
    assert (await one.link.rows("SELECT count(*) FROM lanes WHERE NOT closed"))[0][0] == 0


async def test_no_receipt_is_lost_to_a_window_that_is_closed_while_many_append(pair: Pair) -> None:
    one, two = pair
    stop, receipts = threading.Event(), list[int]()

    async def send(replica: ReplicaStore, first: int) -> None:
        for number in range(first, first + 4000, 2):
            if stop.is_set():
                return
            try:
                if await replica.give([instalment(number)]) == [STORED]:
                    receipts.append(number)
            except StoreBusyError:
                return

    sending = [asyncio.create_task(send(replica, first)) for first, replica in enumerate(pair)]
    while len(receipts) < 40:
        await asyncio.sleep(0.005)
    await one.store.apply(CLOSE)
    stop.set()
    await asyncio.gather(*sending)

    assert len(receipts) >= 40
    assert set(await numbers(two)) >= set(receipts)


async def test_a_former_coordinator_closes_no_window(pair: Pair) -> None:
    one, two = pair
    await two.give([instalment(1)])
    one.release_lead()
    two.lead()
    one.engine.epoch = 1  # It does not know it yet.

    with pytest.raises(FencedError):
        await one.store.apply(CLOSE)

    assert await lanes(one) == [(0, 1, False)]
    assert await two.give([instalment(2)]) == [STORED]


async def test_who_is_refused_the_move_closes_nothing(pair: Pair) -> None:
    one, two = pair
    await two.give([instalment(1)])
    with pytest.raises(Exception, match="collecting"):
        await one.store.apply(replace(CLOSE, required=frozenset({WindowState.RELEASING})))
    assert await two.give([instalment(2)]) == [STORED]


async def test_an_append_whose_answer_is_lost_begins_another_lane(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = pair
    await two.give([instalment(1)])
    run = RetryingLink.run

    def lost(link: RetryingLink, work: Any) -> Any:
        monkeypatch.setattr(RetryingLink, "run", run)
        run(link, work)
        raise StoreBusyError("the server does not answer")

    monkeypatch.setattr(RetryingLink, "run", lost)
    with pytest.raises(Exception, match="does not answer"):
        await two.give([instalment(2)])
    assert await two.give([instalment(2), instalment(3)]) == [STORED] * 2

    await one.store.apply(CLOSE)
    assert await numbers(two) == [1, 2, 3]
    assert [lane for lane, _, _ in await lanes(one)] == [0, 1]


async def test_more_than_a_set_may_have_is_left_out_alike_by_every_reader(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each lane keeps to the limits, and together they do not."""
    one, two = pair
    await one.give([instalment(n) for n in (1, 2, 258, 600)])
    await two.give([instalment(n) for n in (3, 259, 601)])
    monkeypatch.setattr(report_index, "MAX_REPORTS_PER_LEAF", 2)
    monkeypatch.setattr(report_index, "MAX_REPORTS_PER_WINDOW", 4)

    await one.store.apply(CLOSE)

    assert await numbers(one) == await numbers(two) == [1, 2, 258, 600]
    assert await one.store.read(read_rejections, WINDOW) == {RejectReason.WINDOW_CLOSED: 3}


async def test_a_window_of_many_lanes_ends_with_the_digest_of_every_report_once(pair: Pair) -> None:
    one, two = pair
    await one.give([instalment(n, one) for n in range(4) for one in (1, 2)])
    await two.give([instalment(n, one) for n in range(2, 6) for one in (1, 2)])
    await one.store.apply(CLOSE)
    abort = WindowChange(window_id=WINDOW, required=frozenset({WindowState.AGREEING}), new_state=WindowState.ABORTED)
    await one.store.apply(abort)

    await one.store.purge(WINDOW)

    assert await lanes(one) == []
    asked = [instalment(n).report_id for n in range(7)]
    found = [instalment(n, 2).digest for n in range(6)]
    assert await two.store.instalment_digests(WINDOW, asked, 2) == [*found, None]


async def test_many_small_frames_of_many_lanes_are_joined_as_one_by_one(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_frames, "_FRAMES_AT_ONCE", (3, 16))
    monkeypatch.setattr(report_log, "_ROWS_AT_ONCE", 10)
    one, two = pair
    for at in range(0, 60, 2):
        await one.give([instalment(n, 1) for n in (at, at + 1)])
        await two.give([instalment(n, one) for n in (at, at + 1) for one in (1, 2)])
    await one.give([instalment(7, 2, content=1)])

    await one.store.apply(CLOSE)

    found = await numbers(two)
    assert sorted(found) == [n for n in range(60) if n != 7]
    loaded = (await one.store.complete_reports(WINDOW)).source(np.arange(59)).load()
    assert loaded.damaged == ()
    assert loaded.batch.input_shares == b"".join(part(n, one) for n in found for one in (1, 2))

"""The oracle: one cell per device and coins the test fixes, so that every cell of the exact difference must be 0 or 1.

A 2 would be a report counted twice, a huge number two aggregators that added different sets, a wrong 0 or 1 a coin
that was thrown anew.
"""

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.storage.file_backend import FileBackend
from fleetcount_aggregator.storage.frames import RECORD_BYTES, LogBackend
from fleetcount_aggregator.storage.opening import server_of
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_mechanisms.sampling import SamplingDie, toss
from fleetcount_protocol.ids import ReportId, WindowId, new_report_id
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.release.record import decode_record
from fleetcount_protocol.window.window import Window

if TYPE_CHECKING:
    from tests.support.deployment import Deployed
    from tests.support.fleet import Fleet, LiveDevice


@dataclass
class FixedCoins:
    """One device's source: every throw of a die comes out as the test says, everything else is the system's.

    The die is thrown with one draw of 8 bytes, as are random moments; seeds and secrets have other sizes. The name of a
    report has this size too, and is shown: it is drawn as everything else. Every draw is recorded.
    """

    die: SamplingDie
    sampled: bool
    seed: int
    draws: list[bytes] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        chance = random.Random(self.seed)
        low, high = (self.die.faces_span, self.die.limit) if self.sampled else (0, self.die.faces_span)
        self.number = chance.randrange(low, high)

    def random_bytes(self, count: int) -> bytes:
        """Return the fixed throw for 8 bytes but those of a name, and the system's randomness for any other size."""
        fixed = count == self.die.byte_count and sys._getframe(1).f_code is not new_report_id.__code__
        drawn = self.number.to_bytes(count, "big") if fixed else SystemRandom().random_bytes(count)
        self.draws.append(drawn)
        return drawn

    def rounds(self, truth: int) -> tuple[int, int]:
        """Return what the coins say for both rounds, by the mechanism itself."""
        answer = toss(self.die, truth, self)
        self.draws.pop()
        return answer.round_one, answer.round_two


def expected_difference(values: int, coins: Iterable[tuple[int, int]]) -> list[int]:
    """Return round two minus round one of cells 1..V."""
    total: Counter[int] = Counter()
    for one, two in coins:
        total[two] += 1
        total[one] -= 1
    return [total[value] for value in range(1, values + 1)]


def raw_cells(record: bytes) -> list[int]:
    """Return the opened numbers of a record; without noise they are the exact difference."""
    return [cell.raw for cell in decode_record(record).cells]


def _frames(place: StorePlace) -> LogBackend:
    if place.url is None:
        return FileBackend(place.file)
    # Tests of stores in files run without its library.
    from fleetcount_aggregator.storage.postgres import Link
    from fleetcount_aggregator.storage.postgres_backend import PostgresBackend

    server = server_of(place)
    return PostgresBackend(server, Link(server, lambda _: None))


async def accepted_reports(place: StorePlace, window_id: WindowId) -> set[bytes]:
    """Return the ids an aggregator has counted, as its store keeps them once the window is purged."""
    backend = _frames(place)
    try:
        async with asyncio.timeout(30):
            while backend.holds(window_id) or window_id not in backend.windows():
                await asyncio.sleep(0.05)
        return {bytes(one) for one in included_in(backend.ended(window_id).records())}
    finally:
        backend.close()


async def check_release(deployment: "Deployed", window: Window, fleet: "Fleet") -> "list[LiveDevice]":
    """Check everything that must hold after a release without noise; return the devices that were counted.

    Every cell is 0 or 1 and what the coins of the counted devices say; a receipt was a promise; all aggregators sealed
    one set and give the same bytes; every device has named one report and never sent two versions of one message.
    """
    statuses = await deployment.ended(window)
    assert [status.state for status in statuses] == [WindowState.RELEASED] * deployment.count, statuses
    assert len({status.set_digest for status in statuses} - {None}) == 1, statuses
    sets = [await accepted_reports(deployment.store_place(one), window.window_id) for one in range(deployment.count)]
    assert all(one == sets[0] for one in sets)
    answers = [await deployment.release(window, position) for position in range(deployment.count)]
    assert all(answer == answers[0] for answer in answers)
    counted = [live for live in fleet.devices if live.transport.names & sets[0]]
    lost = [live.truth for live in fleet.delivered if live not in counted]
    assert lost == [], f"receipted and not counted: {lost}; {statuses}"
    assert len(counted) == len(sets[0]), "a report that no device sent"
    cells = raw_cells(answers[0].record)
    assert set(cells) <= {0, 1}, cells
    assert cells == expected_difference(window.values, [live.rounds for live in counted])
    for live in fleet.devices:
        assert all(len(versions) == 1 for versions in live.transport.sent.values()), live.truth
    return counted


def included_in(blocks: Iterable[bytes]) -> set[ReportId]:
    """Return the reports of joined records that were in the set."""
    return {
        ReportId(records[at : at + ReportId.SIZE])
        for records in blocks
        for at in range(0, len(records), RECORD_BYTES)
        if records[at + RECORD_BYTES - 1]
    }

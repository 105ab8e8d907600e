"""Transactions of PostgreSQL that stand in each other's way (F35): each is committed once, or its caller is told."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace

import psycopg
import pytest
from fleetcount_aggregator.storage.database import Database
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.postgres import Link, Server
from fleetcount_aggregator.storage.schema import COMMIT_TABLE

WRITERS = 16
EACH = 4


@pytest.fixture
def links(postgres_url: str) -> Iterator[list[Link]]:
    """Connections to one schema with a table of two rows."""
    made = [Link(Server(url=postgres_url), lambda _: None) for _ in range(WRITERS)]
    made[0].connection().execute(COMMIT_TABLE.encode())
    made[0].connection().execute(b"CREATE TABLE sums (place integer PRIMARY KEY, total integer)")
    made[0].connection().execute(b"INSERT INTO sums VALUES (0, 0), (1, 0)")
    yield made
    for link in made:
        link.close()


def totals(link: Link) -> list[int]:
    """Return the table."""
    return link.read(lambda db: [int(row[0]) for row in db.execute("SELECT total FROM sums ORDER BY place").fetchall()])


def add_one(db: Database, place: int) -> None:
    """Read a row and write it; two that do so at once cannot both be right."""
    row = db.execute("SELECT total FROM sums WHERE place = ?", (place,)).fetchone()
    assert row is not None
    db.execute("UPDATE sums SET total = ? WHERE place = ?", (row[0] + 1, place))


def test_what_many_writers_of_one_row_were_told_is_committed_is_there_once(links: list[Link]) -> None:
    together, tries = threading.Barrier(WRITERS), list[int]()

    def write(link: Link) -> int:
        together.wait()
        return sum(written(link) for _ in range(EACH))

    def written(link: Link) -> bool:
        def work(db: Database) -> None:
            tries.append(1)
            add_one(db, 0)

        # A machine that is slow enough gives up in the end, and says so.
        with suppress(StoreError):
            link.write(work)
            return True
        return False

    with ThreadPoolExecutor(WRITERS) as pool:
        committed = sum(pool.map(write, links))

    assert totals(links[0]) == [committed, 0]
    assert committed >= WRITERS
    assert len(tries) > committed, "nobody was in anybody's way"
    assert sum(link.retries for link in links) >= len(tries) - committed


def test_two_that_wait_for_each_other_are_both_committed(links: list[Link]) -> None:
    first_rows, tries = threading.Barrier(2), [0, 0]

    def write(number: int) -> None:
        def work(db: Database) -> None:
            tries[number] += 1
            add_one(db, number)
            if tries[number] == 1:
                first_rows.wait()  # Each has its row now and wants the other's.
            add_one(db, 1 - number)

        links[number].write(work)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, range(2)))

    assert totals(links[0]) == [2, 2]
    assert sum(tries) > 2, "nobody waited for anybody"


@pytest.mark.parametrize("conflict", [psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected])
def test_a_conflict_without_end_is_given_up_after_ten_seconds_and_commits_nothing(
    links: list[Link], monkeypatch: pytest.MonkeyPatch, conflict: type[psycopg.Error]
) -> None:
    pauses: list[float] = []
    told = SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append)
    monkeypatch.setattr("fleetcount_aggregator.storage.postgres.time", told)

    def work(db: Database) -> None:
        add_one(db, 0)
        raise conflict("could not serialize access")

    with pytest.raises(StoreError, match="could not be used: could not serialize access"):
        links[0].write(work)

    assert 10 < sum(pauses) < 11
    assert max(pauses) < 0.5
    assert totals(links[0]) == [0, 0]

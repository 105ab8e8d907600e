"""Flips, cuts and deletions of a store, drawn from a seed: each is named by a check, or has changed nothing."""

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from fleetcount_aggregator.host.host import Limits
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.storage.data_keys import StoreKeys
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.opening import open_engine
from fleetcount_aggregator.storage.row_repair import is_restored
from fleetcount_aggregator.storage.rows import note_time, read_latest_time
from fleetcount_aggregator.storage.schema import TABLES
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.storage.store_check import check_store

from tests.support.aggregators import START, Network, answer_all

COINS = [(0, 1), (2, 2), (0, 3)]
TRIALS = 200
UNCOUNTED = {"rejections"}
"""Counts of refusals are for an operator to read, and nothing follows from them."""


async def lived_in(directory: Path) -> bytes:
    """Let two aggregators live: windows released, aborted and under way, questions, marks; return alpha's key."""
    limits = Limits(smallest_min_batch_size=2, give_up_s=600, first_retry_s=1, longest_retry_s=60)
    network = Network(2, directory=directory, limits=limits)
    network.greets = True
    await network.start_all()
    for number, coins in enumerate((COINS, COINS[:1], COINS)):
        opens = network.clock.now() + 20
        window = await network.ask(
            signal=f"Vehicle.Signal{number}",
            name=f"question {number}",
            round_one_opens=int(opens) // 10 * 10,
            round_one_closes=int(opens) // 10 * 10 + 20,
            round_two_closes=int(opens) // 10 * 10 + 40,
            expiry=START + 86_400,
        )
        await answer_all(network, window, coins, offset=10 * number)
        if number < 2:
            await network.run_to_the_end(window)
            for position in range(2):
                await network.core(position).retention.look()
    context = network.core(0).context
    await context.store.write(note_time, int(network.clock.now()))
    key = network.seats[0].at_rest_key
    await network.stop_all()
    for path in directory.iterdir():
        if path.name.startswith("alpha"):
            path.rename(path.with_name(path.name.replace("alpha", "aggregator", 1)))
        else:
            path.unlink()
    return key


def content(database: Path) -> dict[str, Any]:
    """Return all rows of all tables, as SQLite reads them."""
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        names = [*(one.name for one in TABLES), "instance", "schema_version"]
        return {name: sorted(map(repr, connection.execute(f"SELECT * FROM {name}"))) for name in names}


def _flip(dice: random.Random, directory: Path) -> str:
    path = _file(dice, directory)
    data = bytearray(path.read_bytes())
    at = dice.randrange(len(data))
    data[at] ^= 1 << dice.randrange(8)
    path.write_bytes(data)
    return f"bit {at} of {path.name}"


def _cut(dice: random.Random, directory: Path) -> str:
    path = _file(dice, directory)
    data = path.read_bytes()
    left = dice.randrange(len(data))
    path.write_bytes(data[:left])
    return f"{path.name} cut to {left}"


def _lose(dice: random.Random, directory: Path) -> str:
    path = dice.choice(sorted(one for one in directory.iterdir() if one.suffix != ".db"))
    path.unlink()
    return f"{path.name} deleted"


def _row(dice: random.Random, directory: Path) -> str:
    return _delete(dice, directory, everything=False)


def _table(dice: random.Random, directory: Path) -> str:
    return _delete(dice, directory, everything=True)


def _delete(dice: random.Random, directory: Path, *, everything: bool) -> str:
    with closing(sqlite3.connect(directory / "aggregator.db", isolation_level=None)) as connection:
        names = [*sorted({one.name for one in TABLES} - UNCOUNTED), "instance", "schema_version"]
        full = [one for one in names if connection.execute(f"SELECT count(*) FROM {one}").fetchone()[0]]
        name = dice.choice(full)
        if everything:
            connection.execute(f"DELETE FROM {name}")
            return f"all rows of {name}"
        count = connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
        keys = {one.name: one.key for one in TABLES}.get(name, ("rowid",))
        skipped = f"SELECT {', '.join(keys)} FROM {name} LIMIT 1 OFFSET {dice.randrange(count)}"
        values = connection.execute(skipped).fetchone()
        where = " AND ".join(f"{key} = ?" for key in keys)
        connection.execute(f"DELETE FROM {name} WHERE {where}", values)
        return f"a row of {name}"


def _file(dice: random.Random, directory: Path) -> Path:
    """Return one of the files that have content, the database as often as all others together."""
    found = sorted(one for one in directory.iterdir() if one.is_file() and one.stat().st_size)
    beside = [one for one in found if one.name != "aggregator.db"]
    return dice.choice(beside) if dice.random() < 0.5 else directory / "aggregator.db"


KINDS: list[Callable[[random.Random, Path], str]] = [_flip, _flip, _cut, _lose, _row, _row, _table]


@pytest.fixture
async def whole(tmp_path: Path) -> tuple[Path, StoreKeys]:
    """Return the directory of a store in a file and its keys; a check of it finds nothing."""
    directory = tmp_path / "whole"
    directory.mkdir()
    keys = StoreKeys(await lived_in(directory), None)
    (directory / "aggregator.db.lock").unlink()
    with closing(sqlite3.connect(directory / "aggregator.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")  # One file: what is cut is not made good by another.
    return directory, keys


@pytest.mark.parametrize("seed", [31, *(pytest.param(one, marks=pytest.mark.nightly) for one in range(1, 11))])
async def test_each_of_200_damages_is_named_or_has_changed_nothing(
    tmp_path: Path, whole: tuple[Path, StoreKeys], seed: int
) -> None:
    directory, keys = whole
    assert check_store(place(directory), keys).verdicts == ()
    before = content(directory / "aggregator.db")
    dice, named = random.Random(seed), 0
    for number in range(TRIALS):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(directory, copy)
        what = dice.choice(KINDS)(dice, copy)
        try:
            found = bool(check_store(place(copy), keys).verdicts)
        except StoreError:
            found = True
        named += found
        # Only a bit of a page that is not in use may change and change nothing.
        assert found or (what.endswith("of aggregator.db") and content(copy / "aggregator.db") == before), what
        await _start(copy, keys)
        shutil.rmtree(copy)

    assert named > TRIALS / 2


async def _start(directory: Path, keys: StoreKeys) -> None:
    """Open a store as a start does: what it says of damage is a line, never an error of another kind."""
    with suppress(StoreError):
        store = Store.over(open_engine(place(directory)), place(directory).file, keys.at_rest)
        try:
            await store.read(read_latest_time)
            await store.read(is_restored)
        finally:
            await store.close()


def place(directory: Path) -> StorePlace:
    return StorePlace(directory=directory, url=None)


async def test_a_schema_that_is_no_text_is_damage(whole: tuple[Path, StoreKeys]) -> None:
    directory, keys = whole
    path = directory / "aggregator.db"
    data = path.read_bytes()
    assert data.count(b"tablemarksmarks") == 1  # A row of the schema: what it is, its name, and the name again.
    spoilt = data.replace(b"tablemarksmarks", b"tablem\xffrksmarks").replace(
        b"CREATE TABLE marks", b"CREATE TABLE m\xffrk("
    )
    path.write_bytes(spoilt)

    try:
        found = [str(one.damage) for one in check_store(place(directory), keys).verdicts]
    except StoreError as error:
        found = [str(error)]

    assert found
    await _start(directory, keys)

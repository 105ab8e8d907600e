"""A changed byte in any row of a store is named, or changes nothing: never a wrong number, never a second draw."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from fleetcount_aggregator.agreement.report_set import sealed_digest
from fleetcount_aggregator.intake.device_service import UnknownWindowError
from fleetcount_aggregator.process.serving import Core
from fleetcount_aggregator.storage.database import RowSeal, SealedDatabase
from fleetcount_aggregator.storage.errors import DamagedError, StoreError
from fleetcount_aggregator.storage.row_repair import every_damage
from fleetcount_protocol.window.window import Window

from tests.support.aggregators import Network, TestDevice, answer_all, system_noise

STOPS = {("schema_version", "version"), ("instance", "store_state")}
"""What says whether the file is a store that may be served: one line, and nothing starts."""
HARMLESS = {
    ("chains", "session_id"): "a session without keys is not there, and its device opens another",
    ("chains", "chain"): "it opens or does not",
    ("sessions", ""): "a session that is damaged is not there",
    ("instance", ""): "of PostgreSQL, or rows that have tags keep them",
    ("windows", "verify_key"): "it opens or does not; of an ended window there is none",
}


@dataclass
class Crashed:
    """A network whose leader was killed between its draw and the opening, and what it had said by then."""

    network: Network
    files: Path
    released: Window
    drawn: Window
    record: bytes
    commitment: bytes

    async def start_with(self, database: Path) -> Core:
        """Start the leader on other files."""
        self.network.seats[0].store_path = database
        return await self.network.start(0)


async def crashed(files: Path) -> Crashed:
    network = Network(2, directory=files, noise=system_noise())
    network.greets = True
    await network.start_all()
    await network.stand()
    now = int(network.clock.now())
    released = await network.ask(values=2)
    await answer_all(network, released, [(0, 1), (2, 2)])
    await network.run_to_the_end(released)
    record = (await network.core(0).service.release(released.window_id)).record
    later = {
        "round_one_opens": now + 1000,
        "round_one_closes": now + 1010,
        "round_two_closes": now + 1020,
        "expiry": now + 90_000,
    }
    drawn = await network.ask(values=2, name="another question", signal="Vehicle.Speed", **later)
    await network.come_to(drawn)
    await network.stop(0)
    await network.start(0, "leader.after_commitments")
    half = TestDevice(network, drawn, 20)
    await network.advance_to(drawn.round_one_opens)
    await half.open_sessions()
    await half.send(half.first(0))
    await answer_all(network, drawn, [(0, 1), (2, 2)], offset=10)
    await network.advance_to(drawn.round_two_closes)
    network.supervised = False
    await network.look_after_all()
    assert network.seats[0].core is None, "it must really crash"
    [commitment] = await drawn_at(core=await network.start(0), window=drawn)
    await network.stop(0)
    return Crashed(network, files, released, drawn, record, commitment)


async def drawn_at(core: Core, window: Window) -> list[bytes]:
    """Return what an aggregator commits to for a window, drawing if it thinks that it has not."""
    known = await core.context.windows.find(window.window_id)
    digest = await sealed_digest(core.context.store, window.window_id)
    if known is None or digest is None:
        return []
    return [(await core.steps.commit(known, digest)).commitment]


def flips(database: Path) -> Iterator[tuple[str, str, int]]:
    """Yield table, column and row number of a byte to change: each column of each table, of two windows."""
    with closing(sqlite3.connect(database)) as connection:
        tables = [one[0] for one in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            columns = [one[1] for one in connection.execute(f"PRAGMA table_info({table})")]
            count = connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0]
            assert count, f"{table} is empty, and nothing is tried there"
            for column in columns:
                for number in {0, count - 1} if table == "windows" else {count - 1}:
                    yield table, column, number


def change(database: Path, table: str, column: str, number: int) -> bool:
    """Change one byte of a value; return whether there was one."""
    with closing(sqlite3.connect(database)) as connection, connection:
        columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
        row = connection.execute(f"SELECT * FROM {table} LIMIT 1 OFFSET {number}").fetchone()
        values = {one[1]: value for one, value in zip(columns, row, strict=True)}
        value = values[column]
        if value is None or value in (b"", ""):
            return False
        if isinstance(value, bytes):
            changed: object = value[:-1] + bytes((value[-1] ^ 1,))
        elif isinstance(value, str):
            changed = value[:-1] + chr(ord(value[-1]) ^ 1)
        else:
            changed = value ^ 0x400
        key = [one[1] for one in columns if one[5]] or [column]
        where = " AND ".join(f"{one} = ?" for one in key)
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (changed, *(values[one] for one in key)))
        return True


async def test_a_changed_byte_in_any_column_is_named_or_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    town = await crashed(tmp_path / "files")
    silent: list[tuple[str, str]] = []
    tried = 0
    for table, column, number in flips(town.files / "alpha.db"):
        copy = tmp_path / f"{table}.{column}.{number}"
        shutil.copytree(town.files, copy, ignore=shutil.ignore_patterns("beta*", "*.lock"))
        if not change(copy / "alpha.db", table, column, number):
            continue
        tried += 1
        if not await is_noticed(town, copy / "alpha.db", stops=(table, column) in STOPS):
            silent.append((table, column))

    assert {one for one in silent if one not in HARMLESS and (one[0], "") not in HARMLESS} == set()
    assert tried > 60
    for step in ("commit", "set"):
        copy = tmp_path / f"gone.{step}"
        shutil.copytree(town.files, copy, ignore=shutil.ignore_patterns("beta*", "*.lock"))
        with closing(sqlite3.connect(copy / "alpha.db")) as connection, connection:
            where = (bytes(32), step, town.drawn.window_id)
            assert connection.execute("UPDATE steps SET window_id = ? WHERE name = ? AND window_id = ?", where).rowcount
        core = await town.start_with(copy / "alpha.db")
        with pytest.raises(DamagedError, match=f"step {step} of window .* was taken, and its row is gone"):
            await drawn_at(core, town.drawn)
        await town.network.stop(0)
    await town.network.stop_all()


async def is_noticed(town: Crashed, database: Path, *, stops: bool) -> bool:
    """Start on a damaged store; return whether it says that something is damaged. No answer may differ from before."""
    if stops:
        with pytest.raises(StoreError):
            await town.start_with(database)
        return True
    core = await town.start_with(database)
    # Ended windows are looked at when they are asked for, and by `check`; one whose key is damaged is not found.
    with closing(sqlite3.connect(database)) as connection:
        noticed = bool(every_damage(SealedDatabase(connection, RowSeal(town.network.seats[0].at_rest_key))))
    if town.drawn.window_id in core.context.windows.quarantined:
        noticed = True
    try:
        answer = await core.service.release(town.released.window_id)
        assert answer.record == town.record
    except (DamagedError, UnknownWindowError):
        noticed = True
    try:
        assert await drawn_at(core, town.drawn) in ([town.commitment], []), "a second draw"
    except StoreError:
        noticed = True
    # What is whole goes on.
    ids = {town.released.window_id, town.drawn.window_id}
    assert noticed or not ids & set(core.context.windows.quarantined), database
    assert noticed or None not in [await core.context.windows.state_of(one) for one in ids], database
    core.context.host.metrics.render()
    await town.network.stop(0)
    return noticed


def test_a_tag_is_bound_to_its_table_its_key_and_each_value() -> None:
    seal, other = RowSeal(bytes(32)), RowSeal(bytes(31) + b"1")
    tag = seal.tag("steps.seal", (b"a", "bc", 1, None))

    assert seal.holds(tag, "steps.seal", (b"a", "bc", 1, None))
    assert RowSeal(bytes(31) + b"1", bytes(32)).holds(tag, "steps.seal", (b"a", "bc", 1, None))
    for place, values in (
        ("steps.tag", (b"a", "bc", 1, None)),
        ("steps.seal", ("a", "bc", 1, None)),
        ("steps.seal", (b"ab", "c", 1, None)),
        ("steps.seal", (b"a", "bc", "1", None)),
        ("steps.seal", (b"a", "bc", 1, 0)),
        ("steps.seal", (b"a", "bc", 1)),
    ):
        assert not seal.holds(tag, place, values)
    assert not other.holds(tag, "steps.seal", (b"a", "bc", 1, None))
    assert not seal.holds(None, "steps.seal", (b"a", "bc", 1, None))
    assert "0000" not in repr(seal)


def test_without_a_key_rows_are_read_and_never_written() -> None:
    assert RowSeal().holds(b"", "steps.seal", ())
    with pytest.raises(StoreError, match="with the store's key alone"):
        RowSeal().tag("steps.seal", ())

"""A backup has what must not be forgotten and no key of a window; put back, it asks the others and draws nothing."""

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.release.steps import ReleaseSteps
from fleetcount_aggregator.roles.outcomes import settle_restored
from fleetcount_aggregator.storage import backup
from fleetcount_aggregator.storage.backup import BackupFile, put_back, write_backup
from fleetcount_aggregator.storage.database import RowSeal
from fleetcount_aggregator.storage.ended import read_active
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.opening import open_engine
from fleetcount_aggregator.storage.rows import read_ledger, read_window
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.window.window import Window

from tests.support.aggregators import Network, answer_all
from tests.support.counted_noise import CountedNoise

WHOSE = ("alpha", "test")
ABOUT = BackupFile(aggregator_id="alpha", deployment="test", made_at=1_800_000_000, keys=())


async def town(directory: Path) -> tuple[Network, Window, RowSeal, CountedNoise]:
    """Return two aggregators on files as the command has them, with a window whose reports are in."""
    noise = CountedNoise()
    network = Network(2, directory=directory, noise=noise)
    for seat in network.seats:
        seat.store_path = directory / seat.aggregator_id / "aggregator.db"
        seat.store_path.parent.mkdir()
    await network.start_all()
    network.supervised = False
    window = await network.ask(values=2)
    await answer_all(network, window, [(0, 1), (2, 2)])
    await network.advance_to(window.round_two_closes)
    return network, window, RowSeal(network.seats[0].at_rest_key), noise


def lost_and_restored(directory: Path, seal: RowSeal, backup: Path) -> None:
    """Lose alpha's state and put the backup in its place."""
    (directory / "alpha").rename(directory / "lost")
    put_back(StorePlace(directory=directory / "alpha"), backup, lambda _: seal, WHOSE, {})


@pytest.mark.parametrize("released", [True, False], ids=["released elsewhere", "released nowhere"])
async def test_what_was_drawn_before_the_loss_is_adopted_or_ends_and_is_not_drawn_again(
    tmp_path: Path, released: bool
) -> None:
    """The backup is made before the draw, while the aggregator serves; the draw is in nothing that was put back."""
    network, window, seal, noise = await town(tmp_path)
    backup = tmp_path / "backup"
    write_backup(StorePlace(directory=tmp_path / "alpha"), seal, backup, ABOUT, {})
    if not released:
        await network.stop(0)
        await network.start(0, "leader.after_commitments")
    await network.look_after_all()
    network.crashed.clear()
    await network.stop(0)
    drawn = noise.drawn
    assert drawn == 2
    lost_and_restored(tmp_path, seal, backup)

    core = await network.start(0)
    assert set(core.context.windows.quarantined) == {window.window_id}
    await network.look_after_all()
    assert noise.drawn == drawn
    await settle_restored(
        core.context, ReleaseSteps(core.context.windows, core.context.questions, core.context.workers)
    )
    await network.look_after_all()

    assert noise.drawn == drawn, "noise is drawn once a window"
    answer = await core.service.release(window.window_id)
    assert answer.state is (WindowState.RELEASED if released else WindowState.ABORTED)
    assert answer.abort_reason == ("" if released else "restored_backup")
    if released:
        assert answer == await network.core(1).service.release(window.window_id)
    assert [row.window_id for row in await core.context.store.read(read_ledger)] == [window.window_id]
    await network.stop(0)
    assert not (await network.start(0)).context.windows.quarantined
    with closing(sqlite3.connect(tmp_path / "alpha" / "aggregator.db")) as database:
        assert database.execute("SELECT store_state FROM instance").fetchone() == ("serving",)
    await network.stop_all()


async def test_a_restored_window_waits_for_a_peer_that_is_away_and_nothing_is_done_about_it(tmp_path: Path) -> None:
    network, window, seal, noise = await town(tmp_path)
    write_backup(StorePlace(directory=tmp_path / "alpha"), seal, tmp_path / "backup", ABOUT, {})
    await network.stop_all()
    lost_and_restored(tmp_path, seal, tmp_path / "backup")
    core = await network.start(0)

    with pytest.raises(_TriedTwiceError):
        await _settling(core.context, tries=2)
    await network.look_after_all()

    assert window.window_id in core.context.windows.quarantined
    assert noise.drawn == 0
    await network.stop_all()


class _TriedTwiceError(Exception):
    pass


async def _settling(context: Context, tries: int) -> None:
    left = tries

    async def sleep(_: float) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise _TriedTwiceError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fleetcount_aggregator.roles.outcomes.asyncio.sleep", sleep)
        await settle_restored(context, ReleaseSteps(context.windows, context.questions, context.workers))


async def test_a_backup_holds_no_key_no_session_and_nothing_that_ends_with_a_window(tmp_path: Path) -> None:
    network, _, seal, _ = await town(tmp_path)
    key_file = tmp_path / "store.key"
    key_file.write_bytes(b"k" * 32)
    place = StorePlace(directory=tmp_path / "alpha")

    write_backup(place, seal, tmp_path / "plain", ABOUT, {})
    write_backup(place, seal, tmp_path / "with", ABOUT, {"store_key_file": key_file})

    with tarfile.open(tmp_path / "plain") as archive:
        names = archive.getnames()
        copied = archive.extractfile("aggregator.db")
        assert copied is not None
        (tmp_path / "copied.db").write_bytes(copied.read())
    assert names == ["manifest.json", "manifest.tag", "aggregator.db", "aggregator.key-check"]
    with tarfile.open(tmp_path / "with") as archive:
        assert archive.getnames()[-1] == "keys/store_key_file"
    with closing(sqlite3.connect(tmp_path / "copied.db")) as database:
        for table in ("sessions", "chains", "batches"):
            assert database.execute(f"SELECT COUNT(*) FROM {table}").fetchone() == (0,)
        assert database.execute("SELECT MAX(length(verify_key)) FROM windows").fetchone() == (0,)
    for path in (tmp_path / "plain", tmp_path / "with"):
        assert path.stat().st_mode & 0o777 == 0o600
    store = network.core(0).context.store
    [window_id] = await store.read(read_active)
    row = await store.read(read_window, window_id)
    assert row is not None
    secret = row.verify_key[12:28]
    assert secret not in (tmp_path / "plain").read_bytes()
    assert not list(tmp_path.glob(".*")), "no copy is left lying"
    await network.stop_all()


async def test_what_a_backup_leaves_out_is_overwritten_where_it_was_copied_to_and_lies_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal of the copy would hold sessions' keys as they were, and be deleted without being overwritten."""
    network, _, seal, _ = await town(tmp_path)
    store = network.core(0).context.store
    chains = await store.read(lambda db: [row[0] for row in db.execute("SELECT chain FROM chains").fetchall()])
    looked, lying = list[str](), list[str]()

    def connect(path: Any, **named: Any) -> sqlite3.Connection:
        connection = real(path, **named)
        if Path(path).parent.name.startswith(".backup."):
            connection.set_trace_callback(lambda statement: look(Path(path), statement))
        return connection

    def look(copy: Path, statement: str) -> None:
        looked.append(statement)
        others = [path.read_bytes() for path in copy.parent.iterdir() if path != copy]
        lying.extend(statement for data in others if any(chain in data for chain in chains))

    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", connect)
    write_backup(StorePlace(directory=tmp_path / "alpha"), seal, tmp_path / "backup", ABOUT, {})

    assert chains
    assert "DELETE FROM chains" in looked
    assert not lying
    await network.stop_all()


_KILLED = """
import os, signal, sys
from pathlib import Path
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.storage import backup
from fleetcount_aggregator.storage.database import RowSeal

backup._pack = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
about = backup.BackupFile(aggregator_id="alpha", deployment="test", made_at=1_800_000_000, keys=())
place, seal = StorePlace(directory=Path(sys.argv[1])), RowSeal(bytes.fromhex(sys.argv[2]))
backup.write_backup(place, seal, Path(sys.argv[3]), about, {})
"""


@pytest.mark.processes
async def test_what_a_backup_that_was_killed_left_goes_with_the_next_to_the_same_file(tmp_path: Path) -> None:
    network, _, seal, _ = await town(tmp_path)
    place, output = StorePlace(directory=tmp_path / "alpha"), tmp_path / "backup"
    words = [str(place.directory), network.seats[0].at_rest_key.hex(), str(output)]
    killed = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", _KILLED, *words], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert list(tmp_path.glob(".backup*"))

    write_backup(place, seal, output, ABOUT, {})

    assert output.exists()
    assert not list(tmp_path.glob(".backup*"))
    await network.stop_all()


async def test_two_backups_to_one_file_at_once_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, _, seal, _ = await town(tmp_path)
    place, output = StorePlace(directory=tmp_path / "alpha"), tmp_path / "backup"
    pack = backup._pack

    def while_another_begins(*arguments: Any) -> None:
        with pytest.raises(UsageError, match="another backup to it is being written"):
            write_backup(place, seal, output, ABOUT, {})
        pack(*arguments)

    monkeypatch.setattr(backup, "_pack", while_another_begins)
    write_backup(place, seal, output, ABOUT, {})

    assert output.exists()
    await network.stop_all()


@pytest.mark.parametrize("lies_there", ["a link", "a directory that all may write to", "another one since"])
def test_a_backup_is_made_in_no_directory_that_may_be_somebody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lies_there: str
) -> None:
    """Where others may write, as in /tmp, its name is known to them, and what lies in it is erased."""
    made, other, lock = tmp_path / ".backup.making", tmp_path / "other", backup.fcntl.flock
    other.mkdir(mode=0o700)
    (other / "file").write_text("of somebody else")

    def late(descriptor: int, how: int) -> None:
        made.rmdir()
        other.rename(made)
        lock(descriptor, how)

    if lies_there == "a link":
        made.symlink_to(other)
    elif lies_there == "another one since":
        made.mkdir(mode=0o700)
        monkeypatch.setattr(backup.fcntl, "flock", late)
    else:
        other.rename(made)
        made.chmod(0o777)

    with pytest.raises(UsageError, match="not a directory of this user alone"):
        write_backup(StorePlace(directory=tmp_path), RowSeal(bytes(32)), tmp_path / "backup", ABOUT, {})

    assert (made / "file").read_text() == "of somebody else"


@pytest.mark.parametrize("moment", range(6))
async def test_a_restore_that_is_killed_leaves_no_store_or_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    network, window, seal, _ = await town(tmp_path)
    await network.run_to_the_end(window)
    write_backup(StorePlace(directory=tmp_path / "alpha"), seal, tmp_path / "backup", ABOUT, {})
    await network.stop_all()
    (tmp_path / "alpha").rename(tmp_path / "lost")
    place = StorePlace(directory=tmp_path / "alpha")
    left = moment
    here = threading.get_ident()  # What an earlier test's threads still write is not counted, nor ended.

    def counted(function: str) -> None:
        real = getattr(os, function)

        def one(*arguments: object, **named: object) -> object:
            nonlocal left
            left -= threading.get_ident() == here
            if left < 0 and threading.get_ident() == here:
                raise KeyboardInterrupt
            return real(*arguments, **named)

        monkeypatch.setattr(os, function, one)

    for function in ("fsync", "rename"):
        counted(function)
    with pytest.raises(KeyboardInterrupt):
        put_back(place, tmp_path / "backup", lambda _: seal, WHOSE, {})
    monkeypatch.undo()

    if not place.file.exists():
        with pytest.raises(StoreError, match="a restore of it has not ended; run it again"):
            open_engine(place)
        put_back(place, tmp_path / "backup", lambda _: seal, WHOSE, {})
    core = await network.start(0)
    assert (await core.service.release(window.window_id)).state is WindowState.RELEASED
    assert not await core.context.store.damaged()
    await network.stop_all()


async def test_what_a_store_that_was_moved_away_has_left_does_not_come_into_the_one_put_back(tmp_path: Path) -> None:
    """SQLite would take a journal that lies beside a database for that database's own, and write it into it."""
    network, _, seal, _ = await town(tmp_path)
    write_backup(StorePlace(directory=tmp_path / "alpha"), seal, tmp_path / "backup", ABOUT, {})
    shutil.copytree(tmp_path / "alpha", tmp_path / "crashed")
    await network.stop_all()
    place = StorePlace(directory=tmp_path / "crashed")
    place.file.rename(tmp_path / "moved away.db")
    journal = place.file.with_name("aggregator.db-wal")
    assert journal.stat().st_size

    with pytest.raises(UsageError, match=r"aggregator\.db-wal is there: a backup is put back where no store is"):
        put_back(place, tmp_path / "backup", lambda _: seal, WHOSE, {})
    journal.unlink()
    put_back(place, tmp_path / "backup", lambda _: seal, WHOSE, {})

    with closing(sqlite3.connect(place.file)) as database:
        assert database.execute("SELECT store_state FROM instance").fetchone() == ("restored",)


async def test_a_backup_that_is_damaged_or_somebody_elses_is_not_put_back(tmp_path: Path) -> None:
    network, _, seal, _ = await town(tmp_path)
    place, backup = StorePlace(directory=tmp_path / "alpha"), tmp_path / "backup"
    write_backup(place, seal, backup, ABOUT, {})
    await network.stop_all()
    elsewhere = StorePlace(directory=tmp_path / "new")
    good = backup.read_bytes()

    with pytest.raises(UsageError, match="exists; a backup is written to a new file"):
        write_backup(place, seal, backup, ABOUT, {})
    with pytest.raises(UsageError, match="is there: a backup is put back where no store is"):
        put_back(place, backup, lambda _: seal, WHOSE, {})
    with pytest.raises(UsageError, match="is of aggregator 'alpha' in 'test', this is 'beta'"):
        put_back(elsewhere, backup, lambda _: seal, ("beta", "test"), {})
    with pytest.raises(StoreError, match="damaged, or was made under another store key"):
        put_back(elsewhere, backup, lambda _: RowSeal(bytes(32)), WHOSE, {})
    with pytest.raises(StoreError, match=r"backup could not be put back: /.*here: No such file or directory$"):
        put_back(StorePlace(directory=tmp_path / "not" / "here"), backup, lambda _: seal, WHOSE, {})
    for at in range(1600, len(good), len(good) // 40):
        backup.write_bytes(good[:at] + bytes((good[at] ^ 1,)) + good[at + 1 :])
        try:
            put_back(elsewhere, backup, lambda _: seal, WHOSE, {})
        except StoreError:
            assert not elsewhere.file.exists()
            continue
        # Padding of the archive: what counts is what was made.
        elsewhere.file.rename(tmp_path / f"whole.{at}")
    backup.write_bytes(b"nothing of the kind")
    with pytest.raises(StoreError, match="cannot be read as a backup"):
        put_back(elsewhere, backup, lambda _: seal, WHOSE, {})

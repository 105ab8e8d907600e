"""Nothing secret of an ended window opens any more: its data key is overwritten where it lay, and only then."""

import errno
import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from fleetcount_aggregator.memory.installed import learn_window
from fleetcount_aggregator.storage.data_keys import DataKeys, StorageCipher, at_rest_key_of
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.row_types import WindowChange, WindowRow
from fleetcount_aggregator.storage.rows import read_window
from fleetcount_aggregator.storage.sqlite_engine import KeyFiles
from fleetcount_aggregator.storage.store import Store
from fleetcount_protocol.ids import Digest, ReportId, WindowId
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.window.window import Window

from tests.support.aggregators import Network, TestDevice, answer_all
from tests.support.instalments import StoredInstalment, add

WINDOW = WindowId(b"t" * 32)
KEY, OTHER_KEY = bytes(range(32)), bytes(range(1, 33))
FORMER = bytes(range(2, 34))
ABORT = WindowChange(
    window_id=WINDOW, required=frozenset({WindowState.COLLECTING}), new_state=WindowState.ABORTED, abort_reason="x"
)

INSTALMENT = StoredInstalment(
    window_id=WINDOW,
    report_id=ReportId(bytes(16)),
    round=1,
    certificate=Digest(bytes(32)),
    digest=Digest(bytes(32)),
    public_share=b"",
    part=b"part",
    expected=2,
)


def open_store(directory: Path, key: bytes = KEY, former: bytes | None = None) -> Store:
    return Store.open(directory / "store.db", key, former)


def row() -> WindowRow:
    return WindowRow(
        window_id=WINDOW,
        canonical=b"window",
        verify_key=b"sealed",
        state=WindowState.COLLECTING,
        abort_reason="",
        installed_at=7,
    )


def key_file(directory: Path) -> Path:
    [path] = directory.glob("*.data-key")
    return path


async def asked(directory: Path, count: int = 2) -> tuple[Network, Window]:
    network = Network(count, directory=directory)
    await network.start_all()
    window = await network.ask(values=2)
    await answer_all(network, window, [(0, 1), (2, 2)])
    return network, window


async def shares_in(image: Path, at_rest_key: bytes, window: Window) -> int:
    """Return how many reports somebody with an image of a disk and the at-rest key reads the shares of."""
    store = Store.open(image / "alpha.db", at_rest_key)
    try:
        reports = await store.complete_reports(window.window_id)
        positions = reports.ids.order
        return len(reports.source(positions).load().batch.nonces) // 16
    finally:
        await store.close()


async def test_a_disk_image_and_every_key_that_lives_on_open_nothing_of_an_ended_window(tmp_path: Path) -> None:
    """The log and the database are copied before the end, as blocks of a disk survive; what was the key is gone."""
    state = tmp_path / "state"
    state.mkdir()
    network, window = await asked(state)
    key, before, after = network.seats[0].at_rest_key, tmp_path / "before", tmp_path / "after"
    await network.stop(0)
    for image in (before, after):
        shutil.copytree(state, image)
    await network.start(0)
    [path] = state.glob("alpha.*.data-key")
    wrapped, held = path.read_bytes(), os.open(path, os.O_RDONLY)

    await network.run_to_the_end(window)
    (after / path.name).unlink()
    blocks = os.pread(held, 1000, 0)
    os.close(held)

    assert await shares_in(before, key, window) == 2, "as long as the key lies there they open"
    with pytest.raises(StoreError, match="has no data key"):
        await shares_in(after, key, window)
    assert blocks == bytes(len(wrapped)), "overwritten in place, not only unlinked"
    left = b"".join(one.read_bytes() for one in state.iterdir())
    assert not any(wrapped[at : at + 16] in left for at in range(8, len(wrapped) - 16))
    with pytest.raises(StoreError, match="has ended"):
        network.core(0).context.store.data_keys.of(window.window_id)
    await network.stop_all()


@pytest.mark.parametrize("ending", ["released", "aborted"])
async def test_a_window_that_has_ended_is_still_answered_about(tmp_path: Path, ending: str) -> None:
    network, window = await asked(tmp_path, count=2)
    if ending == "aborted":
        network.seats[1].core, gone = None, network.core(1)
        await gone.context.store.close()
        network.supervised = False
        await network.advance_to(window.round_two_closes)
        await network.look_after_all()
    else:
        await network.run_to_the_end(window)
    answer = await network.core(0).service.release(window.window_id)
    left = list(tmp_path.glob("alpha.*.data-key*" if ending == "aborted" else "*.data-key*"))

    await network.stop_all()
    await network.start_all()
    if ending == "aborted":
        network.clock.advance(10_000)
        await network.look_after_all()

    assert not left, "not only at the next start"
    assert answer.state is (WindowState.RELEASED if ending == "released" else WindowState.ABORTED)
    assert await network.core(0).service.release(window.window_id) == answer
    assert (await network.core(1).helper.status(window.window_id)).state is answer.state
    assert not list(tmp_path.glob("*.data-key*"))
    assert not list(tmp_path.glob("*.log"))
    await network.stop_all()


@pytest.mark.parametrize("what", ["key only", "all"])
async def test_a_key_that_a_crash_left_is_destroyed_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    store = open_store(tmp_path)
    await store.decide_windows((), row())
    await add(store, [INSTALMENT])
    await store.apply(ABORT)
    if what == "key only":
        monkeypatch.setattr(DataKeys, "destroy", lambda *_: None)
        await store.purge(WINDOW)
        monkeypatch.undo()
        assert not list(tmp_path.glob("*.log"))
    await store.close()
    assert key_file(tmp_path).exists()

    again = open_store(tmp_path)
    for window_id in again.unpurged:
        await again.purge(window_id)

    assert not list(tmp_path.glob("*.data-key*"))
    assert not list(tmp_path.glob("*.log"))
    await again.close()


async def test_no_key_is_destroyed_before_the_end_of_its_window_is_durable(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    await store.decide_windows((), row())
    before = key_file(tmp_path).read_bytes()

    with pytest.raises(StoreError, match="is collecting: only of an ended window"):
        await store.purge(WINDOW)

    assert key_file(tmp_path).read_bytes() == before
    assert store.data_keys.of(WINDOW).log_key
    await store.close()


async def test_a_disk_that_fails_at_the_end_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    await store.decide_windows((), row())
    await store.apply(ABORT)

    def failing(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("fleetcount_transport.durable_files._blank", failing)
    with pytest.raises(StoreError, match="could not be destroyed: Input/output error"):
        await store.purge(WINDOW)
    monkeypatch.undo()
    await store.purge(WINDOW)

    assert not list(tmp_path.glob("*.data-key*"))
    await store.close()


async def test_a_window_whose_key_does_not_reach_the_disk_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fleetcount_transport.durable_files.os.pwrite", full)
    with pytest.raises(StoreError, match=r"data-key could not be written: No space left"):
        await store.decide_windows((), row())
    monkeypatch.undo()

    assert await store.read(read_window, WINDOW) is None
    await store.decide_windows((), row())
    assert len(list(tmp_path.glob("*.data-key*"))) == 1
    await store.close()


@pytest.fixture
def synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Count the syncs of the directory, whether each was done; behind a False that is put there the next one fails."""
    real, done = os.fsync, list[bool]()

    def fsync(descriptor: int) -> None:
        if os.path.sameopenfile(descriptor, directory):
            fails = done[-1:] == [False]
            done.append(not fails)
            if fails:
                raise OSError(errno.EIO, "Input/output error")
        real(descriptor)

    directory = os.open(tmp_path, os.O_RDONLY)
    monkeypatch.setattr(os, "fsync", fsync)
    return done


async def test_a_key_whose_name_did_not_reach_the_disk_is_not_taken_for_durable(
    tmp_path: Path, synced: list[bool]
) -> None:
    """A power cut would take the name: rows under the key would be there, and the key gone."""
    store = open_store(tmp_path)
    synced.append(False)
    with pytest.raises(StoreError, match=r"data-key could not be written: Input/output error"):
        await store.decide_windows((), row())
    assert await store.read(read_window, WINDOW) is None
    synced.clear()

    await store.decide_windows((), row())

    assert synced == [True]
    await store.close()


async def test_names_that_a_killed_process_left_are_durable_before_anything_rests_on_them(
    tmp_path: Path, synced: list[bool]
) -> None:
    """Killed between a file and its directory's sync: nobody syncs the name of a file that is there already."""
    store = open_store(tmp_path)
    await store.decide_windows((), row())
    await add(store, [INSTALMENT])
    await store.close()
    synced.clear()

    store = open_store(tmp_path)
    await add(store, [INSTALMENT])

    assert synced == [True], "the log, from which a repeat gets its receipt, and the key of the log"
    await store.close()


async def test_a_key_that_is_gone_damaged_or_wrapped_otherwise_is_named(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    await store.decide_windows((), row())
    await store.close()
    path = key_file(tmp_path)
    good = path.read_bytes()

    with pytest.raises(StoreError, match=r"key-check does not open: the store was written under another at-rest key"):
        open_store(tmp_path, OTHER_KEY)
    for bad in (good[:-1], good[:-1] + b"\0", None):
        path.unlink() if bad is None else path.write_bytes(bad)
        store = open_store(tmp_path)
        [damage] = await store.damaged()
        await store.close()
        assert (damage.table, damage.window_id) == ("data key", WINDOW)
        assert f"store.{WINDOW.hex()}.data-key is missing or damaged" in str(damage)


async def test_sessions_go_on_when_the_store_gets_its_own_key_and_the_signing_key_is_replaced(tmp_path: Path) -> None:
    """Chains of sessions that nobody used in between are moved, too: nothing in the store needs the old signing key."""
    network = Network(2, directory=tmp_path)
    seat = network.seats[0]
    seat.at_rest_key = at_rest_key_of(seat.signing_key)
    await network.start_all()
    window = await network.ask(values=2)
    device = TestDevice(network, window, 1)
    await device.open_sessions()
    await network.stop(0)
    seat.at_rest_key = os.urandom(32)
    await network.start(0)
    await network.stop(0)
    seat.signing_key = Network(2).seats[0].signing_key

    await network.start(0)
    [found] = await network.core(0).service._intake._sessions.find([device.requests[0].session_id])

    assert found is not None
    await network.stop_all()


async def test_a_store_without_open_windows_knows_its_key_too(tmp_path: Path) -> None:
    await open_store(tmp_path).close()
    await open_store(tmp_path).close()

    for former in (None, FORMER):
        with pytest.raises(StoreError, match=r"store\.key-check does not open: the store was written under another"):
            open_store(tmp_path, OTHER_KEY, former)


async def test_a_store_that_gets_a_key_of_its_own_leaves_nothing_under_the_former_one(tmp_path: Path) -> None:
    former = FORMER
    store = open_store(tmp_path, former, former)
    await store.decide_windows((), row())
    await store.close()
    path = key_file(tmp_path)
    wrapped, held = path.read_bytes(), os.open(path, os.O_RDONLY)

    await open_store(tmp_path, KEY, former).close()
    blocks = os.pread(held, 1000, 0)
    os.close(held)

    assert blocks == bytes(len(wrapped))
    with pytest.raises(StoreError):
        StorageCipher(former).open(path.read_bytes()[8:], b"data key", WINDOW)
    await open_store(tmp_path, KEY).close()


async def test_every_window_has_a_key_of_its_own(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    windows = [WindowId(bytes((number,)) * 32) for number in range(3)]
    keys = [store.data_keys.make(window) for window in windows]
    sealed = keys[0].seal(b"secret", b"place")

    assert len({key.log_key for key in keys}) == 3
    with pytest.raises(StoreError, match="do not open"):
        keys[1].open(sealed, b"place")
    assert [store.data_keys.make(window) for window in windows] == keys
    assert "secret" not in repr(keys[0])
    await store.close()


class Hanging(KeyFiles):
    """A place that answers when it is let."""

    def __init__(self, database: Path) -> None:
        super().__init__(database)
        self.asked, self.answers = threading.Event(), threading.Event()

    def _wait(self) -> None:
        self.asked.set()
        assert self.answers.wait(30)

    def add(self, name: str, wrapped: bytes) -> bytes:
        self.write(name, wrapped)
        return wrapped

    def read(self, name: str) -> bytes | None:
        self._wait()
        return None

    def erase(self, name: str) -> None:
        self._wait()


@pytest.mark.parametrize("work", ["of", "destroy"])
def test_a_place_that_does_not_answer_holds_up_nobody_who_has_a_key(tmp_path: Path, work: str) -> None:
    place = Hanging(tmp_path / "store.db")
    keys = DataKeys(KEY, place)
    known = keys.make(WINDOW)

    def ask() -> None:
        with suppress(StoreError):
            getattr(keys, work)(WindowId(b"u" * 32))

    waiting = threading.Thread(target=ask)
    waiting.start()
    assert place.asked.wait(30)
    found = []
    other = threading.Thread(target=lambda: found.append(keys.of(WINDOW)), daemon=True)
    other.start()
    other.join(10)

    assert found == [known]
    place.answers.set()
    waiting.join(30)


async def test_a_window_is_learned_while_the_event_loop_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(2)
    await network.start_all()
    window = await network.ask(values=2)
    context = network.core(0).context
    threads = []
    of = context.store.data_keys.of
    monkeypatch.setattr(
        context.store.data_keys, "of", lambda one: (threads.append(threading.current_thread()), of(one))[1]
    )
    monkeypatch.setattr(context.store.data_keys, "knows", lambda _: False)
    row = await context.store.read(read_window, window.window_id)
    assert row is not None

    await learn_window(context.store, context.host.aggregator_id, row)

    assert threads[0] is not threading.main_thread()
    await network.stop_all()

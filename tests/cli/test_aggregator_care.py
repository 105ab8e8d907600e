"""`fleetcount aggregator check`, `repair`, `backup`, `restore` on a store that `keys init` has made the keys of."""

import asyncio
import base64
import json
import os
import shutil
import signal
import sqlite3
import tarfile
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fleetcount_aggregator.config import load_config
from fleetcount_aggregator.storage import backup, schema
from fleetcount_aggregator.storage.data_keys import StoreKeys
from fleetcount_aggregator.storage.row_types import WindowRow
from fleetcount_aggregator.storage.rows import raise_high_water, read_high_water, read_window
from fleetcount_aggregator.storage.store import Store
from fleetcount_protocol.ids import AggregatorId, WindowId
from fleetcount_protocol.messages import WindowState

from tests.support.next_release import later

Shell = Callable[..., Any]
WINDOW = WindowId(b"t" * 32)
CONFIG = ("--config", "dep/alpha/aggregator.toml")
ROW = WindowRow(
    window_id=WINDOW,
    canonical=b"canonical",
    verify_key=b"sealed",
    state=WindowState.COLLECTING,
    abort_reason="",
    installed_at=7,
)


@pytest.fixture
def state(fleetcount: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the state directory of an aggregator that was started once, with one window and a mark."""
    monkeypatch.chdir(tmp_path)
    assert fleetcount("keys", "init", "--output", "dep", "--devices", "0", "--base-port", "0").code == 0
    asyncio.run(fill())
    return load_config(Path(CONFIG[1]), os.environ).aggregator.state_directory


def opened() -> Store:
    settings = load_config(Path(CONFIG[1]), os.environ)
    settings.aggregator.state_directory.mkdir(exist_ok=True)
    keys = StoreKeys.load(settings.keys.signing_key_file, settings.keys.store_key_file, None)
    return Store.open(settings.store_place.file, keys.at_rest, keys.former)


async def fill() -> None:
    store = opened()
    await store.decide_windows((), ROW)
    await store.write(raise_high_water, AggregatorId("beta"), 3)
    await store.close()


def change(state: Path, statement: str) -> None:
    with closing(sqlite3.connect(state / "aggregator.db")) as connection, connection:
        assert connection.execute(statement).rowcount == 1


def test_check_names_what_is_damaged_what_it_means_and_what_a_repair_does(fleetcount: Shell, state: Path) -> None:
    whole = fleetcount("aggregator", "check", *CONFIG)
    assert (whole.code, "nothing of" in whole.out) == (0, True), whole

    change(state, "UPDATE marks SET ledger_rows = 2")
    [key] = state.glob("*.data-key")
    key.write_bytes(key.read_bytes()[:-1] + b"?")
    (state / f"aggregator.{WINDOW.hex()}.log").write_bytes(b"no log")
    found = fleetcount("aggregator", "check", *CONFIG, "--json")

    assert found.code == 1, found
    said = json.loads(found.out)
    assert said["runs"] is False
    assert {(one["table"], one["window"]) for one in said["damaged"]} == {("marks", None), ("data key", WINDOW.hex())}
    assert all(one["what"] and one["means"] and one["repair"] for one in said["damaged"])
    text = fleetcount("aggregator", "check", *CONFIG)
    assert (text.code, "quarantine" in text.out) == (1, True)
    assert "forgets it" in text.out


def test_check_reads_no_log_while_the_aggregator_runs(fleetcount: Shell, state: Path) -> None:
    store = opened()
    found = fleetcount("aggregator", "check", *CONFIG)
    asyncio.run(store.close())

    assert (found.code, "the aggregator runs" in found.out) == (0, True), found


def test_a_backup_is_put_back_where_no_store_is(fleetcount: Shell, state: Path) -> None:
    made = fleetcount("aggregator", "backup", *CONFIG, "--output", "alpha.backup")
    assert made.code == 0, made
    assert "windows under way do not go on" in made.out
    again = fleetcount("aggregator", "backup", *CONFIG, "--output", "alpha.backup")
    assert (again.code, "exists" in again.err) == (2, True)
    refused = fleetcount("aggregator", "restore", *CONFIG, "alpha.backup")
    assert (refused.code, "put back where no store is" in refused.err) == (2, True)
    shutil.rmtree(state)

    done = fleetcount("aggregator", "restore", *CONFIG, "alpha.backup")

    assert done.code == 0, done
    window, marks, damaged = asyncio.run(look())
    assert window == replace(ROW, verify_key=b"")
    assert marks == {"beta": 3}
    assert "data key" in damaged, "an open window has none after a restore"
    checked = fleetcount("aggregator", "check", *CONFIG)
    assert (checked.code, "nothing of" in checked.out) == (0, True), "a repair would end it before the next start asks"


async def look() -> tuple[WindowRow | None, Mapping[AggregatorId, int], set[str]]:
    store = opened()
    found = (
        await store.read(read_window, WINDOW),
        await store.read(read_high_water),
        {one.table for one in await store.damaged()},
    )
    await store.close()
    return found


@pytest.mark.usefixtures("state")
def test_a_backup_that_is_terminated_leaves_no_copy_of_the_store(
    fleetcount: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it is made from has sessions and verify keys, which no backup has."""
    copied = backup._copy_rows

    def terminated(*arguments: Any) -> None:
        copied(*arguments)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(backup, "_copy_rows", terminated)
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    ended = fleetcount("aggregator", "backup", *CONFIG, "--output", "alpha.backup")
    after = signal.signal(signal.SIGTERM, before)

    assert (ended.code, "interrupted" in ended.err) == (130, True), ended
    assert not list(tmp_path.glob("*alpha.backup*"))
    assert after not in (signal.SIG_DFL, signal.default_int_handler), "it is as it was"


def test_a_backup_with_keys_is_enough_to_start_from(fleetcount: Shell, state: Path) -> None:
    settings = load_config(Path(CONFIG[1]), os.environ)
    assert settings.keys.store_key_file is not None
    made = fleetcount("aggregator", "backup", *CONFIG, "--output", "alpha.backup", "--with-keys")
    assert (made.code, "any party that has it can act as this aggregator" in made.out) == (0, True), made
    key = settings.keys.store_key_file.read_bytes()
    settings.keys.store_key_file.unlink()
    shutil.rmtree(state)

    done = fleetcount("aggregator", "restore", *CONFIG, "alpha.backup")

    assert done.code == 0, done
    assert settings.keys.store_key_file.read_bytes() == key
    assert settings.keys.store_key_file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("where", ["manifest", "row", "key"])
def test_a_damaged_backup_with_keys_leaves_no_key_file(fleetcount: Shell, state: Path, where: str) -> None:
    settings = load_config(Path(CONFIG[1]), os.environ)
    assert settings.keys.store_key_file is not None
    fleetcount("aggregator", "backup", *CONFIG, "--output", "alpha.backup", "--with-keys")
    whole = Path("alpha.backup").read_bytes()
    with tarfile.open("alpha.backup") as archive:
        member = archive.getmember(
            {"manifest": "manifest.json", "row": "aggregator.db"}.get(where, "keys/store_key_file")
        )
    at = member.offset_data + 5
    Path("alpha.backup").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    settings.keys.store_key_file.unlink()
    shutil.rmtree(state)

    refused = fleetcount("aggregator", "restore", *CONFIG, "alpha.backup")

    assert refused.code != 0, refused
    assert not settings.keys.store_key_file.exists(), "a key of a file that is not what it says"
    assert not (state / "aggregator.db").exists()


@pytest.mark.processes
def test_repair_says_what_is_beyond_it(fleetcount: Shell, state: Path) -> None:
    """What was signed of the window is no window: nobody can be asked about it."""
    change(state, "UPDATE windows SET state = 'agreeing'")
    change(state, "UPDATE marks SET ledger_rows = 2")

    wrong = fleetcount("aggregator", "repair", *CONFIG, "--window", "07")
    assert (wrong.code, "64 hexadecimal digits" in wrong.err) == (2, True), wrong
    looked = fleetcount("aggregator", "repair", *CONFIG, "--dry-run")
    assert "without --dry-run: forgot the mark of peer beta" in looked.out, looked
    done = fleetcount("aggregator", "repair", *CONFIG)

    assert done.code == 5, done
    assert "cannot be repaired" in done.out
    assert "forgot the mark of peer beta" in done.out


def test_a_password_file_that_cannot_be_used_is_a_wrong_configuration(
    fleetcount: Shell, state: Path, tmp_path: Path
) -> None:
    config, password = Path(CONFIG[1]), tmp_path / "dep" / "alpha" / "db.password"
    config.write_text(
        config.read_text() + '[store]\nurl = "postgresql:///a?host=/nowhere"\npassword_file = "db.password"\n'
    )
    said = []
    for mode in (None, 0o644, 0o600):
        if mode is not None:
            password.write_text("the secret word")
            password.chmod(mode)
        ran = fleetcount("aggregator", "serve", *CONFIG)
        said.append((ran.code, ran.error_line))

    assert [code for code, _ in said] == [2, 2, 5]
    assert f"store.password_file {password} is not a file" in said[0][1]
    assert f"store.password_file {password} has mode 0644, allowed: 0600" in said[1][1]
    assert "the secret word" not in str(said)


def test_who_looks_at_a_store_that_was_moved_away_hears_so_first(fleetcount: Shell, state: Path) -> None:
    change(state, "DELETE FROM windows")
    assert json.loads(fleetcount("aggregator", "status", *CONFIG, "--json").out)["not_served"] == ""
    change(state, "UPDATE instance SET store_state = 'moved 1'")
    away = f"{state / 'aggregator.db'} was moved elsewhere; serve the store that it was moved to"

    said = [fleetcount("aggregator", command, *CONFIG) for command in ("status", "windows")]
    assert [(one.code, one.out.splitlines()) for one in said] == [(0, [away, "no windows"])] * 2
    assert json.loads(fleetcount("aggregator", "status", *CONFIG, "--json").out)["not_served"] == away
    listed = fleetcount("aggregator", "windows", *CONFIG, "--json")
    assert (json.loads(listed.out), away in listed.err) == ([], True)
    assert f"FAILED  store: {away}" in fleetcount("doctor", *CONFIG).out
    backup = fleetcount("aggregator", "backup", *CONFIG, "--output", "left.backup")
    assert (backup.code, away in backup.error_line, Path("left.backup").exists()) == (5, True, False)


def test_doctor_fails_what_the_next_start_would_refuse(fleetcount: Shell, state: Path) -> None:
    config, text = Path(CONFIG[1]), Path(CONFIG[1]).read_text()
    assert fleetcount("keys", "store", "--output", "dep/other.key").code == 0
    for old, new, what in (
        ('"keys/store.key"', '"../other.key"', "store"),
        ('question_directory = "questions"', 'question_directory = "nowhere"', "question directory"),
    ):
        assert f"ok      {what}: " in fleetcount("doctor", *CONFIG).out
        config.write_text(text.replace(old, new))

        looked, started = fleetcount("doctor", *CONFIG), fleetcount("aggregator", "serve", *CONFIG)

        assert (looked.code, started.code) == (1, 5 if what == "store" else 2), started
        assert f"FAILED  {what}: {started.error_line.partition(': ')[2]}" in looked.out
        config.write_text(text)


def test_doctor_says_of_a_store_of_a_later_version_what_status_says(
    fleetcount: Shell, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert f"ok      store: {state / 'aggregator.db'}" in fleetcount("doctor", *CONFIG).out
    change(state, "UPDATE schema_version SET version = 99")

    status = fleetcount("aggregator", "status", *CONFIG)

    assert "has schema version 99" in status.error_line
    assert f"FAILED  store: {status.error_line.partition(': ')[2]}" in fleetcount("doctor", *CONFIG).out
    change(state, "UPDATE schema_version SET version = 1")
    monkeypatch.setattr("fleetcount.run.doctor.SQLITE", later(schema.SQLITE))
    assert "of version 1: the next start brings it to 2" in fleetcount("doctor", *CONFIG).out, "before an upgrade"


def test_a_backup_under_another_key_says_so(fleetcount: Shell, state: Path) -> None:
    key = load_config(Path(CONFIG[1]), os.environ).keys.store_key_file
    assert key is not None
    key.write_bytes(base64.b64encode(b"another".ljust(32)))

    said = [fleetcount("aggregator", *words, *CONFIG) for words in (("check",), ("backup", "--output", "a.backup"))]

    assert [one.code for one in said] == [5, 5]
    check, backup_ = (one.error_line.partition(": ")[2] for one in said)
    assert "was written under another at-rest key" in check
    assert backup_ == check
    assert not Path("a.backup").exists()

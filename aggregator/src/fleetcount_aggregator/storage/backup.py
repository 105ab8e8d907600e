"""A backup of a store in one file, made while the aggregator serves, and how it is put back.

It has what must not be forgotten: windows, lasting steps, records, debits, marks, question, and the digests of ended
windows. It has no data key, no share, no session and no verify key: what is deleted at a window's end is not kept here.
So a window that was under way cannot go on from a backup: it has ended elsewhere, or ends. Knows no peer.
"""

import fcntl
import hashlib
import io
import json
import os
import shutil
import sqlite3
import tarfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fleetcount_protocol.errors import UsageError
from fleetcount_transport.durable_files import erase_file, replace_file, sync_directory

from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.storage.database import INCLUDED, RowSeal, SealedDatabase
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.opening import reading
from fleetcount_aggregator.storage.row_repair import every_damage
from fleetcount_aggregator.storage.schema import RESTORED, check_readable, check_store_state, read_store_state
from fleetcount_aggregator.storage.sqlite_engine import restoring_beside

_FORMAT: Final = 1
_MANIFEST: Final = "manifest.json"
_TAG: Final = "manifest.tag"
_DATABASE: Final = "aggregator.db"
_MOST_MANIFEST_BYTES: Final = 64 * 2**20
_PIECE_BYTES: Final = 2**20
_PLACE: Final = "backup"
KEPT_KEYS: Final = ("store_key_file", "signing_key_file")
"""Which key files a backup may have, as the configuration calls them: without the store's nothing of it can be read."""
_JOURNALS: Final = ("-wal", "-journal")
_LEFT_OUT: Final = (
    "DELETE FROM sessions",
    "DELETE FROM chains",
    "DELETE FROM batches",
    "DELETE FROM steps WHERE transient = 1",
    "UPDATE windows SET verify_key = x''",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupFile:
    """What a backup says of itself: whose it is, when it was made, and which key files are in it."""

    aggregator_id: str
    deployment: str
    made_at: int
    keys: tuple[str, ...]


def write_backup(place: StorePlace, seal: RowSeal, output: Path, about: BackupFile, keys: Mapping[str, Path]) -> None:
    """Write a backup to a new file of mode 0600, whole or not at all; `keys` are key files to put into it.

    The rows are those of one moment, and all that they speak of is written before them.

    Raises:
        UsageError: the file exists, or the store is not in a SQLite file.
        StoreError: the store is damaged, was moved away, or cannot be read or the file not be written.
    """
    if place.url is not None:
        raise UsageError(
            f"{place.name} is backed up by PostgreSQL's own tools (docs/operating-trouble.md); allowed is SQLite"
        )
    if output.exists():
        raise UsageError(f"{output} exists; a backup is written to a new file")
    try:
        with _made_beside(output) as directory:
            _copy_rows(place, seal, directory / _DATABASE)
            # After the rows: a window that ended in between has its digests here, and nothing speaks of them yet.
            beside = sorted(place.file.parent.glob(f"{place.file.stem}.*.digests"))
            beside += [path for path in [place.file.with_name(f"{place.file.stem}.key-check")] if path.exists()]
            named = {path.name: path for path in beside}
            files = {_DATABASE: directory / _DATABASE, **named, **{f"keys/{name}": path for name, path in keys.items()}}
            _pack(directory / "whole", files, seal, about)
            (directory / "whole").rename(output)
        sync_directory(output.parent)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"{output} could not be written: {error}") from error


@contextmanager
def _made_beside(output: Path) -> Generator[Path]:
    """Give an empty directory for what a backup is made from; what one that was killed left there goes first.

    Raises:
        UsageError: another backup to the same file is being written, or what lies there may be somebody else's.
    """
    directory, is_new = output.with_name(f".{output.name}.making"), True
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        is_new = False
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{output} cannot be written: another backup to it is being written") from None
        held = os.fstat(descriptor)
        private = is_new or (held.st_uid == os.geteuid() and not held.st_mode & 0o077)
        # By its name it may be a link, or another one that came when a backup ended just now.
        if not private or not os.path.samestat(held, directory.lstat()):
            raise UsageError(f"{output} cannot be written: {directory} is not a directory of this user alone")
        try:
            for left in directory.iterdir():
                erase_file(left)  # A copy of the rows has keys of sessions, which are to be gone when they go.
            yield directory
        finally:
            shutil.rmtree(directory)
    finally:
        os.close(descriptor)


def _copy_rows(place: StorePlace, seal: RowSeal, copy: Path) -> None:
    with reading(place) as source:
        check_readable(place, source)
        check_store_state(place.name, read_store_state(source))
        source.execute("VACUUM INTO ?", (str(copy),))
    with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
        database = SealedDatabase(connection, seal)
        if damaged := every_damage(database):
            raise StoreError(f"{damaged[0]}, {len(damaged)} in all: run `fleetcount aggregator check`")
        connection.execute("PRAGMA secure_delete = ON")
        # What is overwritten here would lie in a journal file as it was, and that is deleted as it is.
        connection.execute("PRAGMA journal_mode = MEMORY")
        connection.execute("BEGIN")
        for statement in _LEFT_OUT:
            connection.execute(statement)
        sealed = connection.execute("SELECT window_id FROM windows WHERE chosen IS NOT NULL").fetchall()
        connection.executemany(
            INCLUDED.update, [INCLUDED.updating(database, window_id, None) for (window_id,) in sealed]
        )
        connection.execute("UPDATE instance SET store_state = ?", (RESTORED,))
        connection.execute("COMMIT")
        connection.execute("VACUUM")


def _pack(output: Path, files: Mapping[str, Path], seal: RowSeal, about: BackupFile) -> None:
    manifest = json.dumps(
        {
            "format": _FORMAT,
            "aggregator_id": about.aggregator_id,
            "deployment": about.deployment,
            "made_at": about.made_at,
            "files": {name: {"bytes": path.stat().st_size, "sha256": _digest(path)} for name, path in files.items()},
        },
        sort_keys=True,
    ).encode()
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for name, content in ((_MANIFEST, manifest), (_TAG, seal.tag(_PLACE, (manifest,)))):
                archive.addfile(_member(name, len(content)), io.BytesIO(content))
            for name, path in files.items():
                with path.open("rb") as one:
                    archive.addfile(_member(name, path.stat().st_size), one)
        file.flush()
        os.fsync(file.fileno())


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    return member


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Putting one back.


class _Packed:
    """An open backup: its manifest, believed only after `check`, and its files."""

    def __init__(self, path: Path, archive: tarfile.TarFile) -> None:
        self._path = path
        self._archive = archive
        self._members = {member.name: member for member in archive.getmembers()}
        self._manifest = self._small(_MANIFEST)
        self._tag = self._small(_TAG)
        try:
            told: dict[str, Any] = json.loads(self._manifest)
            self.files: dict[str, tuple[int, str]] = {
                str(name): (int(one["bytes"]), str(one["sha256"])) for name, one in told["files"].items()
            }
            keys = tuple(name.removeprefix("keys/") for name in self.files if name.startswith("keys/"))
            self.about = BackupFile(
                aggregator_id=str(told["aggregator_id"]),
                deployment=str(told["deployment"]),
                made_at=int(told["made_at"]),
                keys=keys,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(f"{path} is no backup of this program") from error
        if told.get("format") != _FORMAT:
            raise StoreError(f"{path} has format {told.get('format')}; this version of fleetcount knows {_FORMAT}")

    def _small(self, name: str) -> bytes:
        member = self._members.get(name)
        if member is None or not member.isreg() or member.size > _MOST_MANIFEST_BYTES:
            raise StoreError(f"{self._path} is no backup of this program")
        return b"".join(self._pieces(member))

    def _pieces(self, member: tarfile.TarInfo) -> Iterator[bytes]:
        file = self._archive.extractfile(member)
        while file is not None and (piece := file.read(_PIECE_BYTES)):
            yield piece

    def check(self, seal: RowSeal) -> None:
        """Return if this store's key made the manifest, and no other file is there than it names.

        Raises:
            StoreError: another key made it, it is damaged, or it holds something else.
        """
        if not seal.holds(self._tag, _PLACE, (self._manifest,)):
            raise StoreError(f"{self._path} is damaged, or was made under another store key")
        if set(self._members) != {_MANIFEST, _TAG, *self.files} or _DATABASE not in self.files:
            raise StoreError(f"{self._path} does not hold the files that it names")
        flat = [name for name in self.files if "/" in name.removeprefix("keys/") or name.startswith(".")]
        if flat:
            raise StoreError(f"{self._path} names the file {flat[0]!r}; allowed are names without directories")

    def unpack(self, name: str, target: Path) -> None:
        """Write one file, durably.

        Raises:
            StoreError: it is not what the manifest says.
        """
        member, digest, count = self._members[name], hashlib.sha256(), 0
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            for piece in self._pieces(member) if member.isreg() else ():
                file.write(piece)
                digest.update(piece)
                count += len(piece)
            file.flush()
            os.fsync(file.fileno())
        if (count, digest.hexdigest()) != self.files[name]:
            raise StoreError(f"{name} in {self._path} is damaged")


def put_back(
    place: StorePlace,
    path: Path,
    load_seal: Callable[[Mapping[str, Path]], RowSeal],
    whose: tuple[str, str],
    keys: Mapping[str, Path],
) -> BackupFile:
    """Put a backup in the place of a store that is not there; run again after whatever ended it.

    `keys` says where key files belong; `load_seal` reads the store's key, from the files it is given in place of those
    that are in the backup and not on the machine. Nothing is written there before all of the backup is checked.
    `whose`: the aggregator's id and deployment. The database takes its name last: until then no aggregator starts
    here, and from then on it is whole, and knows that it was put back.

    Raises:
        UsageError: there is a store already, it is not in a SQLite file, or the backup is somebody else's.
        StoreError: the backup is damaged or of another key, or the disk failed; then there is no store.
    """
    if place.url is not None:
        raise UsageError(
            f"{place.name} is put back by PostgreSQL's own tools (docs/operating-trouble.md); allowed is SQLite"
        )
    # SQLite takes what lies there as a journal for that of whatever database is beside it.
    for there in (place.file, *(place.file.with_name(place.file.name + end) for end in _JOURNALS)):
        if there.exists():
            raise UsageError(f"{there} is there: a backup is put back where no store is; move this one away first")
    staged = restoring_beside(place.file)
    try:
        with tarfile.open(path, mode="r:") as archive:
            packed = _Packed(path, archive)
            about = packed.about
            if (about.aggregator_id, about.deployment) != whose:
                raise UsageError(
                    f"{path} is of aggregator {about.aggregator_id!r} in {about.deployment!r}, this is {whose[0]!r} in"
                    f" {whose[1]!r}"
                )
            place.directory.mkdir(mode=0o700, exist_ok=True)
            shutil.rmtree(staged, ignore_errors=True)
            staged.mkdir(mode=0o700)
            lacking = [name for name in about.keys if name in keys and not keys[name].exists()]
            for name in lacking:
                packed.unpack(f"keys/{name}", staged / name)
            seal = load_seal({name: staged / name for name in lacking})
            packed.check(seal)
            names = [name for name in packed.files if not name.startswith("keys/")]
            for name in names:
                packed.unpack(name, staged / name)
            _check_rows(staged / _DATABASE, seal)
            for name in lacking:
                replace_file(keys[name], (staged / name).read_bytes())
                erase_file(staged / name)
            _take_names(place.file, staged, names)
    except tarfile.TarError as error:
        raise StoreError(f"{path} cannot be read as a backup: {error}") from error
    except OSError as error:
        where, why = error.filename or place.directory, error.strerror or error
        raise StoreError(f"{path} could not be put back: {where}: {why}") from error
    return about


def _check_rows(database: Path, seal: RowSeal) -> None:
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            if damaged := every_damage(SealedDatabase(connection, seal)):
                raise StoreError(f"{damaged[0]}, {len(damaged)} in all")
    except sqlite3.Error as error:
        raise StoreError(f"the database of the backup cannot be read: {error}") from error


def _take_names(database: Path, staged: Path, names: Sequence[str]) -> None:
    for name in names:
        if name != _DATABASE:
            (staged / name).rename(database.with_name(name))
    sync_directory(staged)
    sync_directory(database.parent)
    (staged / _DATABASE).rename(database)
    sync_directory(database.parent)
    shutil.rmtree(staged)

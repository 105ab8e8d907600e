"""PostgreSQL for tests: one cluster a run, where the machine has the programs; a database a worker, a schema a test.

A schema is empty as a database is, and costs a fiftieth of one; but locks and notices are a database's, so that workers
do not share one. The server listens on a socket in its private directory and nowhere else. As root it runs as another
user, since initdb refuses root. Who changes its settings, or kills it, takes a cluster of its own (`own_cluster`).
"""

import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from tests.support.processes import wait_until
from tests.support.shared import shared

_PLACE = os.environ.get("TMPDIR", "/tmp")
_INSTALLED = Path("/usr/lib/postgresql")
_NUMBERS = count(1)
_SHOWN = 1500
"""Of a server's log, in a message: its end says why."""


def find_postgres() -> Path | None:
    """Return the directory of initdb and postgres, the newest where there are several; None without one."""
    found = shutil.which("initdb")
    versions = sorted(_INSTALLED.glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    places = [*([Path(found).resolve().parent] if found else []), *versions]
    return next((place for place in places if all((place / one).is_file() for one in ("initdb", "postgres"))), None)


def _other_user() -> dict[str, Any]:
    """Return as whom to run it, for `subprocess`: as ourselves, but never as root."""
    if os.geteuid() != 0:
        return {}
    names = {one.pw_name: one for one in pwd.getpwall()}
    chosen = names.get("postgres") or names["nobody"]
    return {"user": chosen.pw_uid, "group": chosen.pw_gid, "extra_groups": []}


class Cluster:
    """A cluster in a directory that is made for it; its server may be killed and started again."""

    def __init__(self, programs: Path, directory: Path, *settings: str, database: str = "postgres") -> None:
        self.database = database
        self._programs = programs
        self._settings = settings
        self._as_user = _other_user()
        self._server: subprocess.Popen[bytes] | None = None
        self.directory = directory
        self.data = directory / "data"
        self.log = directory / "server.log"
        if self._as_user:
            os.chown(directory, self._as_user["user"], self._as_user["group"])

    @property
    def socket(self) -> Path:
        """Where the server listens."""
        return self.directory / ".s.PGSQL.5432"

    def make(self) -> None:
        """Make an empty one."""
        self._run("initdb", "-D", str(self.data), "-U", "owner", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
        with (self.data / "postgresql.conf").open("a") as settings:
            # In its own folder: what is in /dev/shm nobody removes when the server was killed.
            settings.write("dynamic_shared_memory_type = mmap\n")

    @contextmanager
    def receiver(self, directory: Path, name: str) -> Iterator[None]:
        """Let somebody take the server's log under a name, as a standby does."""
        command = [
            str(self._programs / "pg_receivewal"),
            "-D",
            str(directory),
            "-h",
            str(self.directory),
            "-U",
            "owner",
        ]
        child = subprocess.Popen(command, env={"PGAPPNAME": name}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            child.terminate()
            child.wait()

    @contextmanager
    def standby(self) -> Iterator["Cluster"]:
        """A second server that takes over everything this one writes, until it is promoted."""
        with _beside(self._programs) as copy:
            place = ["-h", str(self.directory), "-U", "owner"]
            copy._run("pg_basebackup", "-D", str(copy.data), "-R", "-c", "fast", *place)
            copy.start()
            yield copy

    @contextmanager
    def standby_away(self) -> Iterator[None]:
        """Every commit waits for a standby that is not there, until the block ends."""
        self.run("ALTER SYSTEM SET synchronous_standby_names = 'away'")
        self.reload()
        try:
            yield
        finally:
            self.run("ALTER SYSTEM RESET synchronous_standby_names")
            self.reload()

    def reload(self) -> None:
        """Let the server read its settings again, and wait until every command that is sent from now on goes by them.

        A new connection says when they were read last; before the server's first process lets one in it has told all.
        """
        before = self._read_at()
        self.run("SELECT pg_reload_conf()")
        wait_until(lambda: self._read_at() > before, "the server reads its settings")

    def _read_at(self) -> datetime:
        moment: datetime = self.run("SELECT pg_conf_load_time()")[0][0]
        return moment

    def set_clock(self, database: str, ahead_s: float) -> None:
        """Let the server tell new connections to a database a time that is ahead by so much; 0: the right one again."""
        if not ahead_s:
            self.run(f"ALTER DATABASE {database} RESET search_path")
            return
        for name in ("clock_timestamp", "now"):
            self.run(
                f"CREATE OR REPLACE FUNCTION public.{name}() RETURNS timestamptz LANGUAGE sql AS"
                f" $$SELECT pg_catalog.{name}() + interval '{ahead_s} seconds'$$",
                database,
            )
        # The server's own functions are found after these; what is made without a schema is made in the first.
        self.run(f"ALTER DATABASE {database} SET search_path = public, pg_catalog")

    def interrupt_wait(self, how: str = "pg_cancel_backend") -> int:
        """Interrupt who waits for the standby, as soon as somebody does, and return who it was."""
        wait_until(lambda: len(self.waiting()) == 1, "a commit waits for the standby")
        [process] = self.waiting()
        self.run(f"SELECT {how}({process})")
        return process

    def waiting(self) -> list[int]:
        """Return the processes of the server that wait for the standby."""
        return [int(row[0]) for row in self.run("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")]

    @contextmanager
    def base_backup(self) -> Iterator["Cluster"]:
        """A base backup of this one as it is now, in a place of its own, whose server is not started yet."""
        with _beside(self._programs) as copy:
            place = ["-h", str(self.directory), "-U", "owner"]
            copy._run("pg_basebackup", "-D", str(copy.data), "-c", "fast", *place)
            yield copy

    def become(self, copy: "Cluster", *recovery: str) -> None:
        """Stop, take the place of a base backup, and start; `recovery`: settings of a restore to a point in time."""
        self.stop()
        shutil.rmtree(self.data)
        copy.data.rename(self.data)
        if recovery:
            (self.data / "recovery.signal").touch()
            with (self.data / "postgresql.auto.conf").open("a") as settings:
                settings.writelines(f"{one}\n" for one in recovery)
        self.start()

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), *arguments],
            cwd=self.directory,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C", "TZ": "UTC"},
            capture_output=True,
            text=True,
            check=False,
            **self._as_user,
        )
        assert done.returncode == 0, done.stderr

    def start(self) -> None:
        """Start the server and wait until it answers."""
        self._launch()
        wait_until(lambda: self._runs() and self._answers(), "PostgreSQL answers")

    def _launch(self) -> None:
        settings = ("max_connections=60", "shared_buffers=16MB", "max_wal_size=64MB", *self._settings)
        with self.log.open("ab") as log:
            self._server = subprocess.Popen(
                [str(self._programs / "postgres"), "-D", str(self.data), "-k", str(self.directory)]
                + ["-c", "listen_addresses="]
                + [word for setting in settings for word in ("-c", setting)],
                cwd=self.directory,
                # By the directory of a run for temporary files, what it left running is found.
                env={"LC_ALL": "C", "TZ": "UTC", "TMPDIR": _PLACE},
                stdout=log,
                stderr=log,
                **self._as_user,
            )

    def _runs(self) -> bool:
        assert self._server is not None
        assert self._server.poll() is None, f"PostgreSQL ended: {self.log.read_text()[-_SHOWN:]}"
        return True

    def _answers(self) -> bool:
        import psycopg  # Tests without it skip, so not at the top.

        try:
            psycopg.connect(self.url("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True

    def url(self, database: str = "", **more: str) -> str:
        """Return the address of a database, as `[store] url` takes it; by default of the one that is a worker's own."""
        database = database or self.database
        words = {"host": str(self.directory), "user": "owner", **more}
        return f"postgresql:///{database}?{urlencode(words, quote_via=quote)}"

    def run(self, statement: str, database: str = "") -> list[tuple[Any, ...]]:
        """Run one statement by itself, outside of any transaction, and return its rows."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def small_disk(self, mib: int) -> Iterator[Callable[[int], None]]:
        """A database `small` on a disk of its own of so many MiB, the log elsewhere; gives what makes the disk larger.

        Skips the test where nothing can be mounted.
        """
        with self._mounted(mib) as (disk, enlarge):
            self.run(f"CREATE TABLESPACE small LOCATION '{disk}'")
            self.run("CREATE DATABASE small TABLESPACE small")
            yield enlarge

    @contextmanager
    def small_log_disk(self, mib: int) -> Iterator[Callable[[int], None]]:
        """Have the server's write-ahead log on a disk of its own of so many MiB; gives what makes the disk larger.

        The server starts anew. Skips the test where nothing can be mounted.
        """
        with self._mounted(mib) as (disk, enlarge):
            self.stop()
            log = self.data / "pg_wal"
            shutil.copytree(log, disk / "pg_wal", copy_function=shutil.copy2)
            for one in [disk / "pg_wal", *(disk / "pg_wal").rglob("*")]:
                os.chown(one, self._as_user.get("user", -1), self._as_user.get("group", -1))
            shutil.rmtree(log)
            log.symlink_to(disk / "pg_wal")
            self.start()
            yield enlarge

    @contextmanager
    def _mounted(self, mib: int) -> Iterator[tuple[Path, Callable[[int], None]]]:
        """A small disk for the server, which is stopped in the end."""
        disk = self.directory / "small"
        disk.mkdir()
        options = f"size={mib}m,mode=700,uid={self._as_user.get('user', os.geteuid())}"
        mounting = ["mount", "-t", "tmpfs", "-o", options, "none", str(disk)]
        if os.geteuid() != 0 or subprocess.run(mounting, capture_output=True, check=False).returncode != 0:
            pytest.skip("needs the right to mount a small disk")

        def enlarge(size: int) -> None:
            subprocess.run(["mount", "-o", f"remount,size={size}m", str(disk)], check=True, capture_output=True)

        try:
            yield disk, enlarge
        finally:
            self.stop()
            subprocess.run(["umount", "-l", str(disk)], check=False)

    @property
    def postmaster(self) -> int:
        """The process whose children are all others of the server."""
        assert self._server is not None
        return self._server.pid

    def signal(self, number: int) -> None:
        """Send the postmaster a signal."""
        assert self._server is not None
        self._server.send_signal(number)

    def kill(self) -> None:
        """Kill the postmaster with -9 and wait until its children have gone as well."""
        self.signal(signal.SIGKILL)
        self.ended()

    def revive(self) -> None:
        """Start the server as its unit does, each time it has ended, and wait until it answers.

        After a failed sync it panics, recovers, and may end in the recovery, if that meets the same error.
        """
        wait_until(lambda: self._runs_again() and self._answers(), "PostgreSQL answers")

    def _runs_again(self) -> bool:
        if self._server is None or self._server.poll() is not None:
            wait_until(lambda: not self.processes(), "the server's processes have gone")
            self._launch()
        return True

    def stop(self) -> None:
        """Stop the server, if it runs, at once: without writing down what goes with its directory anyway."""
        if self._server is not None and self._server.poll() is None:
            self.signal(signal.SIGQUIT)
            self.ended()

    def processes(self) -> list[int]:
        """Return the server's processes: the postmaster and its children."""
        return [int(path.parent.name) for path, place in _working_directories() if place == os.fsencode(self.data)]

    def ended(self) -> None:
        """Wait until the server has ended, all of it."""
        assert self._server is not None
        self._server.wait()
        # Children of a killed postmaster notice by themselves, and hold its shared memory until then.
        wait_until(lambda: not self.processes(), "the server's processes have gone")


def _working_directories() -> Iterator[tuple[Path, bytes]]:
    """Yield where processes work: a server's, in its data directory."""
    for process in Path("/proc").glob("[0-9]*/cwd"):
        try:
            yield process, os.fsencode(process.readlink())
        except OSError:
            continue


def _needed() -> Path:
    programs = find_postgres()
    if programs is None:
        pytest.skip("needs PostgreSQL's initdb (scripts/programs installs it)")
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("needs psycopg (the extra fleetcount[postgres])")
    return programs


@contextmanager
def own_cluster(*settings: str) -> Iterator[Cluster]:
    """A cluster that runs as long as the block; `settings` are "name=value". Skips the test where a part is missing."""
    with _beside(_needed(), *settings) as cluster:
        cluster.make()
        cluster.start()
        yield cluster


def reached_by_all(directory: Path) -> bool:
    """Return whether every user may open files in a directory: it and all above it let them through."""
    return all(one.stat().st_mode & stat.S_IXOTH for one in (directory, *directory.parents))


@contextmanager
def _beside(programs: Path, *settings: str) -> Iterator[Cluster]:
    """A place for a cluster, which ends with the block."""
    # Not below a directory of a test: another user may not reach it, and a socket's path has at most 107 bytes.
    within = len(_PLACE) < 60 and reached_by_all(Path(_PLACE))
    directory = Path(tempfile.mkdtemp(prefix="fc-pg-", dir=_PLACE if within else "/tmp"))
    cluster = Cluster(programs, directory, *settings)
    try:
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def hosted_cluster() -> Iterator[dict[str, Any]]:
    """Hold the cluster of a run; gives its description."""
    with own_cluster("max_connections=200") as cluster:
        yield {"programs": cluster._programs, "directory": cluster.directory}


@pytest.fixture(scope="session")
def postgres_cluster(pytestconfig: pytest.Config) -> Cluster:
    """The cluster that the tests of a run share, with a database of this worker's own."""
    _needed()
    worker = getattr(pytestconfig, "workerinput", {}).get("workerid", "only")
    cluster = Cluster(**shared(pytestconfig, "postgres"), database=f"of_{worker}")
    cluster.run(f"CREATE DATABASE {cluster.database}", "postgres")
    return cluster


@pytest.fixture
def postgres_url(postgres_cluster: Cluster) -> Iterator[str]:
    """The address of an empty schema, dropped after the test; whoever is still connected is thrown out."""
    name = f"test_{next(_NUMBERS)}"
    postgres_cluster.run(f"CREATE SCHEMA {name}")
    yield postgres_cluster.url(options=f"-csearch_path={name}")
    # Tests of other workers are in other databases.
    postgres_cluster.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'fleetcount' AND datname = current_database()"
    )
    postgres_cluster.run(f"DROP SCHEMA {name} CASCADE")

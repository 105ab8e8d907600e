"""How a store is opened by what a configuration says of its place; loads PostgreSQL's client only for one there."""

import importlib.util
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from fleetcount_protocol.errors import UsageError
from fleetcount_transport.key_files import read_secret

from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.storage.database import Database
from fleetcount_aggregator.storage.engine import Engine
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.schema import POSTGRES, SERVING, check_store_state
from fleetcount_aggregator.storage.sqlite_engine import SQLITE_ERRORS, SqliteEngine

if TYPE_CHECKING:
    from fleetcount_aggregator.storage.postgres import Server


def server_of(place: StorePlace) -> "Server":
    """Return the server of a store in PostgreSQL.

    Raises:
        UsageError: the file of its password cannot be used; later that is a server that cannot be reached.
        StoreError: the client library is not installed.
    """
    if importlib.util.find_spec("psycopg") is None:
        raise StoreError(f"{place.name} needs psycopg; run: pip install 'fleetcount[postgres]'")
    if place.password_file is not None:
        try:
            read_secret(place.password_file)
        except UsageError as error:
            raise UsageError(f"store.password_file {error}") from None
    from fleetcount_aggregator.storage.postgres import Server

    return Server(url=place.url or "", password_file=place.password_file)


def open_engine(
    place: StorePlace,
    *,
    alone: bool = True,
    accept_failover: bool = False,
    migrate: bool = False,
    check_state: Callable[[str, str], None] = check_store_state,
    made: str = SERVING,
) -> Engine:
    """Open a store's database, made if it is new; one in a file is brought up to the present tables.

    `migrate`: one in PostgreSQL too; else it is served as it is, if this release can. `alone`: no second process may
    serve it, as always with a file. `accept_failover`: go on on another server than before. `check_state` judges
    whether it may be used. `made`: how it stands if it is new.

    Raises:
        UsageError: the directory of its files is not there and cannot be made.
        StoreError: it cannot be opened, may not be used, or holds something else.
    """
    try:
        place.directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UsageError(f"aggregator.state_directory {place.directory}: {error.strerror}") from error
    if place.url is None:
        return SqliteEngine.open(place.file, check_state=check_state, made=made)
    server = server_of(place)
    from fleetcount_aggregator.storage.postgres_engine import PostgresEngine

    return PostgresEngine.open(
        server,
        alone=alone,
        accept_failover=accept_failover,
        migrate=migrate,
        check_state=check_state,
        made=made,
        mark=place.file.with_suffix(".server"),
    )


@contextmanager
def reading(place: StorePlace) -> Generator[Database]:
    """Open a store read-only, whether an aggregator has it open or not.

    Raises:
        StoreError: there is none, or it cannot be read.
    """
    if place.url is not None:
        with _reading_server(place) as database:
            yield database
        return
    if not place.file.is_file():
        raise StoreError(f"{place.file} does not exist: this aggregator has not been started yet")
    try:
        with closing(sqlite3.connect(f"{place.file.absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as database:
            yield database
    except SQLITE_ERRORS as error:
        raise StoreError(f"{place.file} cannot be read: {error}") from error


@contextmanager
def _reading_server(place: StorePlace) -> Generator[Database]:
    server = server_of(place)
    import psycopg

    from fleetcount_aggregator.storage.postgres import PostgresDatabase, one_line

    with closing(server.connect()) as connection:
        try:
            connection.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield PostgresDatabase(connection)
        except psycopg.errors.UndefinedTable as error:
            raise StoreError(
                f"{place.name} holds no store of schema version {POSTGRES.version}: this aggregator has not been"
                " started yet, or this is another database"
            ) from error
        except psycopg.Error as error:
            raise StoreError(f"{place.name} cannot be read: {one_line(error)}") from error

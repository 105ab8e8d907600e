"""The tables of a store, numbered: one list for SQLite and PostgreSQL, and what brings up the versions before.

Reads and writes no rows. Statements are written in SQLite's words, of which PostgreSQL knows others for three. In
PostgreSQL there is also what several processes have between them.
"""

import re
from dataclasses import dataclass, replace
from typing import Any, Final

from fleetcount_transport.migrations import Schema

from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.storage.database import Answer, Database
from fleetcount_aggregator.storage.errors import SchemaMovedError, StoreError

PROCESS_TABLES: Final = (
    # Who may take the steps that happen once a window: who leads under the newest epoch (`postgres_engine`).
    "CREATE TABLE coordinator (one SMALLINT PRIMARY KEY CHECK (one = 1), epoch BIGINT NOT NULL,"
    " changes BIGINT NOT NULL DEFAULT 0)",
    "INSERT INTO coordinator (one, epoch) VALUES (1, 0)",
    "CREATE TABLE changes (number BIGINT NOT NULL, kind TEXT NOT NULL, named BYTEA NOT NULL,"
    " PRIMARY KEY (number, kind))",
    # Not in the server's log: what is lost with the server is asked for again (`jobs`).
    "CREATE UNLOGGED TABLE jobs (job BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, window_id BYTEA NOT NULL,"
    " request BYTEA NOT NULL, result BYTEA)",
    "ALTER TABLE jobs ALTER request SET STORAGE EXTERNAL, ALTER result SET STORAGE EXTERNAL",
)
"""What processes over one database have between them (`postgres_engine`, `changes`, `jobs`)."""
COMMIT_TABLE: Final = (
    "CREATE TABLE commits (link BYTEA PRIMARY KEY, number BIGINT NOT NULL, at TIMESTAMPTZ NOT NULL DEFAULT now())"
    " WITH (fillfactor = 50)"
)
"""How many transactions each connection has committed, which says what became of its last one (`postgres`)."""
_INSTANCE_TABLES: Final = (
    "CREATE TABLE instance (one INTEGER PRIMARY KEY, store_state TEXT NOT NULL, system_id TEXT NOT NULL,"
    " timeline INTEGER NOT NULL)",
    "INSERT INTO instance (one, store_state, system_id, timeline) VALUES (1, 'serving', '', 0)",
)
"""The one row of a store about itself: whether it may be served, and which server it was last seen on."""
_TABLES: Final = (
    # `taken`: the lasting steps by name, so that one whose row is gone is not taken again. `rest`: how far a window's
    # life has come (`Lifecycle`); `expiry` and `led`, whether it is led here, are known once it is archived.
    "CREATE TABLE windows (window_id BLOB PRIMARY KEY, canonical BLOB NOT NULL, verify_key BLOB NOT NULL,"
    " state TEXT NOT NULL, abort_reason TEXT NOT NULL, installed_at INTEGER NOT NULL, place INTEGER NOT NULL,"
    " durable_bytes INTEGER NOT NULL DEFAULT 0, log_bytes INTEGER, chosen BLOB, taken TEXT NOT NULL DEFAULT '',"
    " rest INTEGER NOT NULL DEFAULT 0, expiry INTEGER NOT NULL DEFAULT 0, led INTEGER NOT NULL DEFAULT 0,"
    " seal BLOB, canonical_seal BLOB, durable_seal BLOB, chosen_seal BLOB, rest_seal BLOB)",
    "CREATE INDEX windows_by_rest ON windows (rest, expiry, window_id)",
    "CREATE INDEX windows_by_state ON windows (state)",
    "CREATE INDEX windows_by_place ON windows (place)",
    "CREATE TABLE sessions (session_id BLOB PRIMARY KEY, request BLOB NOT NULL, certificate BLOB NOT NULL,"
    " expiry INTEGER NOT NULL, accepted BLOB NOT NULL, seal BLOB)",
    "CREATE INDEX sessions_by_certificate ON sessions (certificate, expiry)",
    "CREATE INDEX sessions_by_expiry ON sessions (expiry)",
    # By themselves, and lying by id: a window's end overwrites the chain of each of its sessions.
    "CREATE TABLE chains (session_id BLOB PRIMARY KEY, chain BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE batches (window_id BLOB NOT NULL, number INTEGER NOT NULL, positions BLOB NOT NULL,"
    " verdicts BLOB NOT NULL, share_digests BLOB NOT NULL, kept BLOB NOT NULL, seal BLOB,"
    " PRIMARY KEY (window_id, number))",
    "CREATE TABLE rejections (window_id BLOB NOT NULL, reason INTEGER NOT NULL, count INTEGER NOT NULL, seal BLOB,"
    " PRIMARY KEY (window_id, reason))",
    "CREATE TABLE steps (window_id BLOB NOT NULL, name TEXT NOT NULL, request BLOB NOT NULL, answer BLOB NOT NULL,"
    " transient INTEGER NOT NULL, seal BLOB, PRIMARY KEY (window_id, name))",
    "CREATE TABLE ledger (window_id BLOB PRIMARY KEY, signal TEXT NOT NULL, opens INTEGER NOT NULL,"
    " closes INTEGER NOT NULL, epsilon TEXT NOT NULL, debited_at INTEGER NOT NULL, place INTEGER NOT NULL,"
    " normal_signal TEXT NOT NULL DEFAULT '', seal BLOB)",
    "CREATE INDEX ledger_by_signal ON ledger (normal_signal, closes)",
    "CREATE INDEX ledger_by_place ON ledger (place)",
    "CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL, seal BLOB)",
    "CREATE TABLE marks (peer TEXT PRIMARY KEY, ledger_rows INTEGER NOT NULL, seal BLOB)",
    # `rest`: when an archived question ended, 0 while it is active.
    "CREATE TABLE questions (question_id BLOB PRIMARY KEY, signed BLOB NOT NULL, seed BLOB NOT NULL,"
    " installed_at INTEGER NOT NULL, place INTEGER NOT NULL, rest INTEGER NOT NULL DEFAULT 0, seal BLOB)",
    "CREATE TABLE question_notes (question_id BLOB NOT NULL, name TEXT NOT NULL, note BLOB NOT NULL, seal BLOB,"
    " PRIMARY KEY (question_id, name))",
    "CREATE TABLE decided (question_id BLOB NOT NULL, number INTEGER NOT NULL, window_id BLOB NOT NULL,"
    " missing TEXT NOT NULL, seal BLOB, PRIMARY KEY (question_id, number))",
    "CREATE INDEX decided_by_window ON decided (window_id)",
    # Each is signed by the aggregator it is of, and looked at before it is believed (`greetings`).
    "CREATE TABLE epochs (name TEXT PRIMARY KEY, epoch BLOB NOT NULL, seal BLOB)",
    "CREATE TABLE schema_version (version INTEGER NOT NULL)",
    *_INSTANCE_TABLES,
)
"""`seal` and `..._seal` hold the tags of rows (`row_seal`). What a step adds to older tables stands here too."""
SQLITE: Final = Schema(version=1, tables=_TABLES, steps={})
"""In one SQLite file."""
FRAME_TABLES: Final = (
    # Whether a window takes instalments, and how many lanes were made for them.
    "CREATE TABLE intakes (window_id bytea PRIMARY KEY, lanes integer NOT NULL DEFAULT 0,"
    " closed boolean NOT NULL DEFAULT false)",
    # Half of a page is left free, so that the row that moves with every group stays where it is.
    "CREATE TABLE lanes (window_id bytea NOT NULL, lane integer NOT NULL, seq bigint NOT NULL DEFAULT 0,"
    " rows bigint NOT NULL DEFAULT 0, header bytea NOT NULL DEFAULT '', closed boolean NOT NULL DEFAULT false,"
    " PRIMARY KEY (window_id, lane)) WITH (fillfactor = 50)",
    "CREATE TABLE ended (window_id bytea NOT NULL, leaf integer NOT NULL, digests bytea NOT NULL,"
    " PRIMARY KEY (window_id, leaf))",
    "ALTER TABLE ended ALTER digests SET STORAGE EXTERNAL",
)
"""What is appended next (`postgres_frames`); the table of a window's frames comes and goes with the window."""
_OTHER_WORDS: Final = ((" BLOB", " BYTEA"), (" INTEGER", " BIGINT"), (" WITHOUT ROWID", ""))
_POSTGRES_TABLES: Final = (
    *PROCESS_TABLES,
    COMMIT_TABLE,
    # Wrapped under the store's key; with SQLite they are files, which can be overwritten where they lie.
    "CREATE TABLE data_keys (name TEXT PRIMARY KEY, wrapped BYTEA NOT NULL)",
    *FRAME_TABLES,
)
"""What is a file, or not needed, beside SQLite."""


def _in_postgres(statement: str) -> str:
    for ours, theirs in _OTHER_WORDS:
        statement = statement.replace(ours, theirs)
    return statement


POSTGRES: Final = Schema(version=SQLITE.version, tables=(*map(_in_postgres, _TABLES), *_POSTGRES_TABLES), steps={})
"""In one PostgreSQL database."""


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The columns of one table, and those of its primary key."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]


def _columns(statement: str) -> TableColumns:
    """Read a CREATE TABLE statement of this module."""
    name, _, inside = statement.removeprefix("CREATE TABLE ").partition(" (")
    words = re.sub(r"\([^()]*\)", lambda key: key.group().replace(",", ";"), inside.rpartition(")")[0]).split(",")
    columns = [word.split() for word in words]
    joint = [word.partition("(")[2].strip(" )") for word in words if word.strip().startswith("PRIMARY KEY")]
    key = joint[0].split(";") if joint else [column[0] for column in columns if "PRIMARY" in column]
    named = [column[0] for column in columns if column[0] != "PRIMARY"]
    return TableColumns(name, tuple(named), tuple(word.strip() for word in key))


def _of_store(statement: str) -> bool:
    about_itself = ("CREATE TABLE schema_version", "CREATE TABLE instance")
    return statement.startswith("CREATE TABLE ") and not statement.startswith(about_itself)


TABLES: Final = tuple(_columns(statement) for statement in _TABLES if _of_store(statement))
"""What a store is, wherever it lies: the tables that a move takes along."""
SERVING: Final = "serving"
RESTORED: Final = "restored"
"""The store is a backup that was put back, and windows of it may have ended elsewhere since."""
MOVING: Final = "moving"
"""And the move's number, once one has been drawn: a move of a store to here has begun and not ended."""
COORDINATOR_GONE: Final = "the row of the table coordinator is missing, by which one process leads"
MOVED: Final = "moved"
"""And the move's number: the store lies elsewhere now."""


def made_as(schema: Schema, store_state: str) -> Schema:
    """Return a schema by which a new store stands otherwise than `SERVING`, from its first transaction on."""
    return replace(schema, tables=(*schema.tables, f"UPDATE instance SET store_state = '{store_state}'"))  # noqa: S608


def check_version(place: str, schema: Schema, tables: set[str], versions: list[int]) -> int:
    """Return the version of a store by its tables and what is in `schema_version`.

    Raises:
        StoreError: it is a database of something else, or of a version that this program does not know.
    """
    if not tables:
        return 0
    if "schema_version" not in tables or len(versions) != 1:
        raise StoreError(
            f"{place} holds {len(tables)} tables of something else; allowed is a store or an empty database"
        )
    if not schema.knows(versions[0]) or not versions[0]:
        raise StoreError(f"{place} has schema version {versions[0]}; this version of fleetcount knows {schema.span}")
    return versions[0]


def check_known(version: int, newest: int) -> None:
    """Return if a process that knows tables of versions up to `newest` knows those of this one.

    Raises:
        SchemaMovedError: a newer release has brought them up.
    """
    if version > newest:
        raise SchemaMovedError(
            f"the database has schema version {version}; this process knows {newest} at most and takes"
            " nothing any more: start the newer release in its place"
        )


def version_of(place: StorePlace, database: Database) -> int:
    """Return the schema version of a store; raises StoreError if this release does not know it."""
    known = SQLITE if place.url is None else POSTGRES
    versions = [row[0] for row in database.execute("SELECT version FROM schema_version").fetchall()]
    return check_version(place.name, known, {"schema_version"}, versions)


def check_readable(place: StorePlace, database: Database) -> None:
    """Refuse to read a store that has not the present tables; who reads brings none up.

    Raises:
        StoreError: it has those of another version.
    """
    known = SQLITE if place.url is None else POSTGRES
    found = version_of(place, database)
    if found != known.version:
        raise StoreError(
            f"{place.name} has schema version {found}; allowed is {known.version}: run `fleetcount aggregator migrate`"
        )


def read_store_state(database: Database) -> str:
    """Return how a store stands, by its row about itself.

    Raises:
        StoreError: the row is gone.
    """
    row = database.execute("SELECT store_state FROM instance").fetchone()
    if row is None:
        raise StoreError("the row of the store about itself is missing: put back a backup")
    return str(row[0])


def coordinator_row(cursor: Answer) -> tuple[Any, ...]:
    """Return the one row of the table coordinator, of which a statement asked or which it changed.

    Raises:
        StoreError: the row is gone.
    """
    row: tuple[Any, ...] | None = cursor.fetchone()
    if row is None:
        raise StoreError(f"{COORDINATOR_GONE}: put back a backup")
    return row


def check_store_state(place: str, store_state: str) -> None:
    """Refuse to serve a store that a move has not finished, or has taken elsewhere.

    Raises:
        StoreError: it may not be served.
    """
    if store_state.startswith(MOVING):
        raise StoreError(
            f"{place} is the target of a move that has not ended; run `fleetcount aggregator move-store` again"
        )
    if store_state not in (SERVING, RESTORED):
        raise StoreError(f"{place} was moved elsewhere; serve the store that it was moved to")

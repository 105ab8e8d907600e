"""What a store in PostgreSQL has for several processes: members, what they lease, and who is told of rows that changed.

Statements of the schema alone, so that it is read without PostgreSQL's client; `leases`, `jobs` and `notices` use them.
"""

from typing import Final

LEASE_TABLES: Final = (
    "CREATE TABLE members (member TEXT PRIMARY KEY, address TEXT NOT NULL, roles TEXT NOT NULL,"
    " until TIMESTAMPTZ NOT NULL, release TEXT NOT NULL DEFAULT '', newest_schema BIGINT NOT NULL)",
    "CREATE VIEW living AS SELECT member, address, roles FROM members WHERE until > clock_timestamp()",
    # Who may take the steps that happen once a window: the owner under the newest epoch.
    "CREATE TABLE coordinator (one SMALLINT PRIMARY KEY CHECK (one = 1), epoch BIGINT NOT NULL, owner TEXT NOT NULL)",
    "INSERT INTO coordinator (one, epoch, owner) VALUES (1, 0, '')",
    "CREATE TABLE slots (slot SMALLINT PRIMARY KEY, token BIGINT NOT NULL, owner TEXT NOT NULL)",
    "CREATE TABLE jobs (job BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, asker TEXT NOT NULL,"
    " window_id BYTEA NOT NULL, request BYTEA NOT NULL, token BIGINT NOT NULL DEFAULT 0,"
    " owner TEXT NOT NULL DEFAULT '', result BYTEA)",
)
"""A row is its owner's as long as that is a living member (`leases`)."""

COMMIT_TABLE: Final = (
    "CREATE TABLE commits (link BYTEA PRIMARY KEY, number BIGINT NOT NULL, at TIMESTAMPTZ NOT NULL DEFAULT now())"
    " WITH (fillfactor = 50)"
)
"""How many transactions each connection has committed, which says what became of its last one (`postgres`)."""

JOB_CHANNEL: Final = "fleetcount_job"
"""There is work."""
DONE_CHANNEL: Final = "fleetcount_done"
"""Work of the named member is done."""
WINDOW_CHANNEL: Final = "fleetcount_window"
QUESTION_CHANNEL: Final = "fleetcount_question"
CHAIN_CHANNEL: Final = "fleetcount_chain"
"""Keys were erased in the session of this id."""
KEY_CHANNEL: Final = "fleetcount_key"
"""The data key of this name was destroyed."""


def _told(channel: str, table: str, named: str, events: str) -> tuple[str, str]:
    """Return the function and the trigger that say on a channel which rows changed, once that is committed."""
    return (
        f"CREATE FUNCTION {channel}_{table}() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN PERFORM pg_notify('{channel}', {named}); RETURN NULL; END $$",
        f"CREATE TRIGGER {channel}_{table} AFTER {events} ON {table} FOR EACH ROW EXECUTE FUNCTION {channel}_{table}()",
    )


_QUESTION: Final = "encode(NEW.question_id, 'hex')"
NOTICE_TABLES: Final = (
    *_told(WINDOW_CHANNEL, "windows", "encode(NEW.window_id, 'hex')", "INSERT OR UPDATE OF state"),
    *_told(QUESTION_CHANNEL, "questions", _QUESTION, "INSERT"),
    *_told(QUESTION_CHANNEL, "question_notes", _QUESTION, "INSERT OR UPDATE"),
    *_told(QUESTION_CHANNEL, "decided", _QUESTION, "INSERT"),
    *_told(CHAIN_CHANNEL, "chains", "encode(NEW.session_id, 'hex')", "UPDATE"),
    *_told(KEY_CHANNEL, "data_keys", "OLD.name", "DELETE"),
)
"""Behind the tables they look at."""

"""The statements of a store in SQL about sessions and their keys: every read and write as a function of a database.

Owns no connection, no thread and no transaction (store).
"""

from collections.abc import Sequence
from typing import Any, Final

from fleetcount_protocol.ids import Digest, SessionId

from fleetcount_aggregator.storage.database import SESSIONS, Changed, SealedDatabase
from fleetcount_aggregator.storage.row_types import SessionRow

_AT_ONCE: Final = 256
"""Sessions asked for in one statement."""


def add_session(db: SealedDatabase, row: SessionRow, most: int, now: int) -> SessionRow | None:
    """Remember a session, unless its certificate has `most` that have not expired at `now`: then None.

    Returns the row that is stored under its id, which is the first one. The limit holds over all processes: sessions
    are counted and added in one transaction.
    """
    known = read_session(db, row.session_id)
    if known is not None:
        return known
    if read_sessions_of(db, row.certificate, now) >= most:
        return None
    sealed = SESSIONS.sealed(db, row.session_id, row.request, row.certificate, row.expiry, row.accepted)
    db.execute(f"{SESSIONS.insert} ON CONFLICT (session_id) DO NOTHING", sealed)
    db.execute(
        "INSERT INTO chains (session_id, chain) VALUES (?, ?) ON CONFLICT (session_id) DO NOTHING",
        (row.session_id, row.chain),
    )
    return row


def read_session(db: SealedDatabase, session_id: SessionId) -> SessionRow | None:
    """Return a session, or None."""
    return next(iter(read_sessions(db, [session_id])), None)


def read_sessions(db: SealedDatabase, session_ids: Sequence[SessionId]) -> Sequence[SessionRow]:
    """Return those of many sessions that are known, in their order.

    One that is damaged is not there: its device opens another.
    """
    rows = _by_session(db, SESSIONS.select, session_ids)
    chains = dict(read_chains(db, list(rows)))
    found = [rows[one] for one in session_ids if one in rows and one in chains and SESSIONS.holds(db, rows[one])]
    return [
        SessionRow(
            session_id=SessionId(session_id),
            request=request,
            certificate=Digest(certificate),
            expiry=expiry,
            accepted=accepted,
            chain=chains[session_id],
        )
        for session_id, request, certificate, expiry, accepted, _ in found
    ]


def read_chains(db: SealedDatabase, session_ids: Sequence[bytes]) -> Sequence[tuple[bytes, bytes]]:
    """Return the sealed keys of sessions that are known, each with its session's id."""
    rows = _by_session(db, "SELECT session_id, chain FROM chains", session_ids)
    return [rows[one] for one in session_ids if one in rows]


def _by_session(db: SealedDatabase, select: str, session_ids: Sequence[bytes]) -> dict[bytes, Any]:
    """Return rows by their session's id; a server far away is asked for many at once, in few forms of one statement."""
    found: dict[bytes, Any] = {}
    for start in range(0, len(session_ids), _AT_ONCE):
        asked = [*session_ids[start : start + _AT_ONCE]]
        asked += asked[-1:] * ((1 << (len(asked) - 1).bit_length()) - len(asked))
        query = f"{select} WHERE session_id IN ({', '.join('?' * len(asked))})"
        found |= {row[0]: row for row in db.execute(query, asked).fetchall()}
    return found


def put_chains(db: SealedDatabase, chains: Sequence[tuple[bytes, bytes]]) -> None:
    """Overwrite the sealed keys of sessions, each given with its session's id; one that is forgotten stays so."""
    rows = [(chain, session_id) for session_id, chain in chains]
    db.executemany("UPDATE chains SET chain = ? WHERE session_id = ?", rows)
    db.changes.extend((Changed.SESSION, name) for name, _ in chains)


def read_sessions_of(db: SealedDatabase, certificate: Digest, now: int) -> int:
    """Return how many sessions of a certificate have not expired at `now`."""
    query = "SELECT COUNT(*) FROM sessions WHERE certificate = ? AND expiry > ?"
    return int(db.execute(query, (certificate, now)).fetchone()[0])


def forget_sessions(db: SealedDatabase, expired_before: int) -> None:
    """Delete sessions that expired before the given second."""
    expired = "SELECT session_id FROM sessions WHERE expiry < ?"
    db.execute(f"DELETE FROM chains WHERE session_id IN ({expired})", (expired_before,))  # noqa: S608 - constant
    db.execute("DELETE FROM sessions WHERE expiry < ?", (expired_before,))

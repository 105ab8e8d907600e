"""A store moves from one key to another, its first of its own or a new one: whole, once, when it is opened.

Afterwards nothing in it needs the key before, which can be destroyed. Decides nothing about a window.
"""

from fleetcount_mechanisms.randomness import SystemRandom

from fleetcount_aggregator.storage.data_keys import DataKeys
from fleetcount_aggregator.storage.engine import SealedEngine
from fleetcount_aggregator.storage.question_rows import reseal_seeds
from fleetcount_aggregator.storage.row_seal import SealedDatabase, reseal
from fleetcount_aggregator.storage.rows import put_chains
from fleetcount_aggregator.storage.session_chains import ChainSeal

_AT_ONCE = 4096


def move_to_present_key(engine: SealedEngine, data_keys: DataKeys) -> None:
    """Seal rows, seeds and sessions' chains under the present key if the store lies under the one before it.

    A crash leaves the store as it was, or moved: what is moved already is passed over. A million sessions take seconds.

    Raises:
        StoreError: the store lies under another key than both, or the disk failed.
    """
    if data_keys.seals_store():
        return
    engine.write(lambda db: _reseal(db, data_keys))
    engine.plain.fold()
    data_keys.note_seals_store()


def _reseal(db: SealedDatabase, data_keys: DataKeys) -> None:
    seal = ChainSeal(data_keys.chain_keys, SystemRandom())
    reseal_seeds(db, data_keys)
    reseal(db)
    above = b""
    while rows := db.execute(
        "SELECT session_id, chain FROM chains WHERE session_id > ? ORDER BY session_id LIMIT ?", (above, _AT_ONCE)
    ).fetchall():
        put_chains(db, [(name, moved) for name, chain in rows if (moved := seal.resealed(name, chain)) is not None])
        above = rows[-1][0]

"""Which frames of windows under way are damaged in PostgreSQL, whether an aggregator runs or not. Changes nothing."""

from collections.abc import Iterator, Sequence
from contextlib import closing

from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.storage import rows as sql
from fleetcount_aggregator.storage.data_keys import DataKeys
from fleetcount_aggregator.storage.errors import Damage, DamagedFrameError
from fleetcount_aggregator.storage.frames import FrameHome, LogState
from fleetcount_aggregator.storage.opening import server_of
from fleetcount_aggregator.storage.row_seal import SealedDatabase
from fleetcount_aggregator.storage.store_keys import StoreKeys


def damaged_frames(db: SealedDatabase, place: StorePlace, keys: StoreKeys) -> Iterator[Damage]:
    """Yield what is damaged of data keys, and of heads and columns of frames; parts are looked at when they are loaded.

    Raises:
        StoreError: the server cannot be reached.
    """
    server = server_of(place)
    from fleetcount_aggregator.storage.postgres import Link
    from fleetcount_aggregator.storage.postgres_engine import KeyRows
    from fleetcount_aggregator.storage.postgres_frames import PostgresHome

    class Unwritten(KeyRows):
        """Keys that are only read: one that lies under a former key stays so."""

        def write(self, name: str, wrapped: bytes) -> None:
            """Write nothing."""

    link = Link(server, lambda _: None)
    with closing(PostgresHome(server, link)) as home:
        states = [one for one in sql.read_log_states(db) if not one.ended]
        data_keys = DataKeys(keys.at_rest, Unwritten(place.name, link), keys.former)
        missing = data_keys.take_up([one.window_id for one in states])
        yield from missing
        without = {one.window_id for one in missing}
        yield from _of_windows(home, data_keys, [one for one in states if one.window_id not in without])


def _of_windows(home: FrameHome, keys: DataKeys, states: Sequence[LogState]) -> Iterator[Damage]:
    for state in states:
        for shard in range(home.shard_count(state.window_id)):
            frames = home.frames(state.window_id, keys.of(state.window_id).log_key, shard, None)
            try:
                for _ in frames.columns():
                    pass
            except DamagedFrameError as error:
                yield Damage(table="log", what=str(error), window_id=state.window_id)

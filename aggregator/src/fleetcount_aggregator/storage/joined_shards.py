"""The shards of a window as one log, which is all that lies beside a file; run by a move of the store.

Frames get numbers that go on from shard to shard, so their heads are written again under the log's key; everything else
of them stays as it is. Positions of complete reports run through the shards in this order too, so none changes.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from fleetcount_protocol.ids import WindowId

from fleetcount_aggregator.storage.data_keys import DataKeys
from fleetcount_aggregator.storage.engine import Engine, SealedEngine
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.frames import RawFrame
from fleetcount_aggregator.storage.log_format import FrameHead
from fleetcount_aggregator.storage.row_seal import WINDOWS, SealedDatabase
from fleetcount_aggregator.storage.store_keys import StoreKeys


class ShardJoiner:
    """Joins shards on the way into a store whose rows and data keys are there already; `keys` are asked for once."""

    def __init__(self, target: Engine, keys: Callable[[], StoreKeys]) -> None:
        self._target = target
        self._load = keys
        self._loaded: StoreKeys | None = None

    @property
    def _keys(self) -> StoreKeys:
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded

    def joined(self, window_id: WindowId, frames: Iterable[RawFrame]) -> Iterator[RawFrame]:
        """Yield the frames of all shards, which come shard by shard, as those of one.

        Raises:
            StoreError: a frame is damaged, or the window has no data key.
        """
        log_key = DataKeys(self._keys.at_rest, self._target.key_place(), self._keys.former).of(window_id).log_key
        first, header = 0, b""
        for shard, alike in groupby(frames, lambda frame: frame.shard):
            before = first
            for frame in alike:
                head = FrameHead.decode(frame.head, log_key)
                header = header or frame.header
                if head is None or head.sequence != first - before or frame.header != header:
                    place = f"frame {first - before} of shard {shard}"
                    raise StoreError(f"window {window_id.hex()}: {place} is damaged; run `fleetcount aggregator check`")
                moved = replace(head, sequence=first, group=before + head.group)
                yield RawFrame(0, header, moved.encode(log_key), frame.columns, frame.parts)
                first += 1

    def note_length(self, window_id: WindowId, length: int) -> None:
        """Remember how long the log of a closed window is: it has one header now, and not one a shard.

        Raises:
            StoreError: the row of the window is damaged.
        """

        def work(db: SealedDatabase) -> None:
            found = db.execute(f"{WINDOWS.select} WHERE window_id = ?", (window_id,)).fetchone()
            key, *values = WINDOWS.checked(db, found)[:-1]
            values[WINDOWS.columns.index("log_bytes")] = length
            db.execute(WINDOWS.update, WINDOWS.updating(db, bytes(key), *values))

        SealedEngine(self._target, self._keys.row_seal).write(work)

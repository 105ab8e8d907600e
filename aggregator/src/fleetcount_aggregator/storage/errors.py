"""What a store refuses and what it finds damaged: the errors of this package, below all that raises them."""

from dataclasses import dataclass

from fleetcount_protocol.errors import MachineError
from fleetcount_protocol.ids import WindowId


class StoreError(MachineError):
    """The store could not do what it was asked: disk full, file damaged, another process in the directory, closed."""


class StoreAwayError(StoreError):
    """The server that has the store was not reached or did not answer: nothing that it has is damaged."""


class StatementRefusedError(StoreAwayError):
    """The server answered, and did not do what it was asked: a full disk, a lock that was not had in time."""


class FencedError(StoreError):
    """Another process leads, which this one believed to do: nothing was written."""


class SchemaMovedError(StoreError):
    """The database has tables of a newer release than this process is of: it has nothing to do there any more."""


class UnknownWriteError(StoreAwayError):
    """Whether something was written is not known, and only what lies there will say."""


class StoreBusyError(StoreError):
    """The store's queue is full, or a window's lane has just been closed; try again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Something of a store that is not as it was written: in which table, of which window if that shows, and what.

    Of files the table is "log" or "data key". `hides_charge`: with it nobody can tell what was charged, or for what.
    """

    table: str
    what: str
    window_id: WindowId | None = None
    hides_charge: bool = False

    def __str__(self) -> str:
        return f"{self.table}: {self.what}"


class DamagedError(StoreError):
    """What was read is not what was written. `damage` names it; the store is left as it is."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(f"{damage}; see `fleetcount aggregator check`")
        self.damage = damage


class DamagedFrameError(StoreError):
    """A frame is not what was written there; the text names the place."""

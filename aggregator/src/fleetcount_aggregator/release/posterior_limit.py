"""Whether a record would tell more of a person than this aggregator's operator allows (`[limits] largest_posterior`).

Looked at before the record is signed. It reads noised numbers only, and keeps and logs none of them.
"""

from fractions import Fraction

from fleetcount_protocol.errors import PeerProblem
from fleetcount_protocol.release import ReleaseRecord, decode_record
from fleetcount_protocol.window.window import decode_window
from fleetcount_transport.logs import log

from fleetcount_aggregator.journal import record_here
from fleetcount_aggregator.memory.installed import InstalledWindow
from fleetcount_aggregator.memory.questions import decided_window
from fleetcount_aggregator.peers import PeerRefusalError
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.verification.workers import Workers

_Numbers = tuple[tuple[int, ...], int | None]
"""The opened numbers of a record's cells, and of its participants where it tells them."""


async def check_telling(
    store: Store, workers: Workers, limit: Fraction | None, window: InstalledWindow, record: ReleaseRecord
) -> None:
    """Refuse a record that, alone or with the one before it in its question, tells more than a limit, which
    may be none.

    Raises:
        PeerRefusalError: TOO_TELLING; also where the numbers are so large that it cannot be computed.
    """
    if limit is None:
        return
    windows = [_numbers(record)]
    previous = await _previous(store, record)
    if previous is not None:
        windows.insert(0, _numbers(previous))
    told = await workers.run(_told, window.asked.canonical, tuple(windows))
    if told > limit:
        log.warning("record_too_telling", window=str(window.window_id))
        raise PeerRefusalError(PeerProblem.TOO_TELLING)


async def _previous(store: Store, record: ReleaseRecord) -> ReleaseRecord | None:
    """Return the record of the window before if it counts the same cells: steps of a walk do not."""
    window, link = record.window.question, record.chain
    if link.previous_index is None:
        return None
    before = await decided_window(store, window.question_id, link.previous_index)
    known = None if before.window_id is None else await record_here(store, before.window_id)
    previous = None if known is None else decode_record(known)
    return previous if previous is not None and previous.window.domain == record.window.domain else None


def _numbers(record: ReleaseRecord) -> _Numbers:
    return tuple(cell.raw for cell in record.cells), None if record.participants is None else record.participants.raw


def _told(window: bytes, windows: tuple[_Numbers, ...]) -> float:
    """Return the largest posterior, 0 where there is none and 1 where it cannot be computed: what the workers run."""
    from fleetcount_analysis.answers.disclosure import OpenedWindow, most_told  # SciPy: as in `release.record`.
    from fleetcount_analysis.errors import AnalysisError

    opened = [OpenedWindow(cells=cells, participants=participants) for cells, participants in windows]
    try:
        return most_told(decode_window(window).design, opened) or 0.0
    except AnalysisError:
        return 1.0

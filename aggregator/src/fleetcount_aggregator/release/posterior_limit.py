"""Whether a record would tell more of a person than this aggregator's operator allows (`[limits] largest_posterior`).

Looked at before the record is signed. It reads noised numbers only, and keeps and logs none of them.
"""

from fleetcount_protocol.errors import PeerProblem
from fleetcount_protocol.release import ReleaseRecord, decode_record
from fleetcount_protocol.window.window import decode_window
from fleetcount_transport.logs import log

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.installed_window import InstalledWindow
from fleetcount_aggregator.peers import PeerRefusalError
from fleetcount_aggregator.windows.decided import decided_window
from fleetcount_aggregator.windows.finished import record_here

_Numbers = tuple[tuple[int, ...], int | None]
"""The opened numbers of a record's cells, and of its participants where it tells them."""


async def check_telling(context: Context, window: InstalledWindow, record: ReleaseRecord) -> None:
    """Refuse a record that, alone or with the one before it in its question, tells more than the limit; none is set by
    default.

    Raises:
        PeerRefusalError: TOO_TELLING; also where the numbers are so large that it cannot be computed.
    """
    limit = context.limits.largest_posterior
    if limit is None:
        return
    windows = [_numbers(record)]
    previous = await _previous(context, record)
    if previous is not None:
        windows.insert(0, _numbers(previous))
    told = await context.workers.run(_told, window.asked.canonical, tuple(windows))
    if told > limit:
        log.warning("record_too_telling", window=str(window.window_id))
        raise PeerRefusalError(PeerProblem.TOO_TELLING)


async def _previous(context: Context, record: ReleaseRecord) -> ReleaseRecord | None:
    """Return the record of the window before if it counts the same cells: steps of a walk do not."""
    window, link = record.window.question, record.chain
    if link.previous_index is None:
        return None
    before = await decided_window(context, window.question_id, link.previous_index)
    known = None if before.window_id is None else await record_here(context, before.window_id)
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

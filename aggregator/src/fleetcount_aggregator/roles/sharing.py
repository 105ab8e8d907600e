"""What another aggregator is shown of what both take part in, when its store was put back from a backup.

Shows what all have signed, and to who is named in it alone; how a task ended it asks by itself (`outcomes`). It must
not take anything up (`adoption`).
"""

from fleetcount_protocol.ids import AggregatorId, SeriesId
from fleetcount_protocol.limits import MAX_SERIES
from fleetcount_protocol.messages import InstallSeries
from fleetcount_protocol.shared import SharedIds

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.peers import PeerProblem, PeerRefusalError

__all__ = ["shared_ids", "shared_series"]


def shared_ids(context: Context, caller: AggregatorId, after: SeriesId | None) -> SharedIds:
    """Return which of the next series, by id above one, the caller is one of the aggregators of."""
    ids = sorted(one.series_id for one in context.series.values() if caller in one.others)
    above = [one for one in ids if after is None or one > after]
    return SharedIds(series_ids=tuple(above[:MAX_SERIES]), more=len(above) > MAX_SERIES)


async def shared_series(context: Context, caller: AggregatorId, series_id: SeriesId) -> InstallSeries:
    """Return a series as all have signed it, with what all its aggregators hold: the seed and the orders.

    Raises:
        PeerRefusalError: UNKNOWN_TASK, there is none, or the caller is not one of its aggregators.
    """
    series = context.series.get(series_id)
    if series is None or caller not in series.others:
        raise PeerRefusalError(PeerProblem.UNKNOWN_TASK)
    return InstallSeries(signed=series.signed, seed=series.seed, orders=series.orders)

"""What two aggregators take part in, between domain values and protobuf (protos/…/peer.proto).

Decides nothing about it; it only refuses what is not the one encoding of a message.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.ids import SeriesId, TaskId
from fleetcount_protocol.limits import MAX_SERIES, MAX_TASKS_PER_LIST
from fleetcount_protocol.shared import SharedIds
from fleetcount_protocol.v1 import peer_pb2 as pb
from fleetcount_protocol.wire.strict import WireMessage

__all__ = ["SHARED_IDS", "SHARED_QUERY", "SHARED_SERIES_QUERY"]

_Id = TypeVar("_Id", bound=bytes)
_SMALL_BYTES: Final = 1_024


def _query_to_pb(after: TaskId | None) -> pb.ListSharedRequest:
    return pb.ListSharedRequest(after=after or b"")


def _read_query(message: pb.ListSharedRequest) -> TaskId | None:
    return TaskId(message.after) if message.after else None


SHARED_QUERY: Final = WireMessage("shared query", pb.ListSharedRequest, _query_to_pb, _read_query, _SMALL_BYTES)


def _ids_to_pb(shared: SharedIds) -> pb.ListSharedResponse:
    return pb.ListSharedResponse(
        task_ids=b"".join(shared.task_ids), series_ids=b"".join(shared.series_ids), next=shared.following or b""
    )


def _split(what: str, joined: bytes, most: int, make: Callable[[bytes], _Id]) -> tuple[_Id, ...]:
    if len(joined) % TaskId.SIZE or len(joined) > most * TaskId.SIZE:
        raise DecodeError(f"{what} have {len(joined)} bytes, not 0 to {most} times {TaskId.SIZE}")
    return tuple(make(joined[at : at + TaskId.SIZE]) for at in range(0, len(joined), TaskId.SIZE))


def _read_ids(message: pb.ListSharedResponse) -> SharedIds:
    return SharedIds(
        task_ids=_split("task ids", message.task_ids, MAX_TASKS_PER_LIST, TaskId),
        series_ids=_split("series ids", message.series_ids, MAX_SERIES, SeriesId),
        following=TaskId(message.next) if message.next else None,
    )


SHARED_IDS: Final = WireMessage(
    name="shared ids",
    pb_type=pb.ListSharedResponse,
    to_pb=_ids_to_pb,
    read=_read_ids,
    largest=(MAX_TASKS_PER_LIST + MAX_SERIES) * TaskId.SIZE + _SMALL_BYTES,
)


def _series_query_to_pb(series_id: SeriesId) -> pb.GetSharedSeriesRequest:
    return pb.GetSharedSeriesRequest(series_id=series_id)


def _read_series_query(message: pb.GetSharedSeriesRequest) -> SeriesId:
    return SeriesId(message.series_id)


SHARED_SERIES_QUERY: Final = WireMessage(
    "shared series query", pb.GetSharedSeriesRequest, _series_query_to_pb, _read_series_query, _SMALL_BYTES
)

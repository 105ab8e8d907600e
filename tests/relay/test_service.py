"""A relay's memory is counted in the bytes it holds: what does not fit is refused as busy, and room comes back."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import AggregatorId, ReportId, SessionId, WindowId
from fleetcount_protocol.messages import Instalment
from fleetcount_protocol.wire.device_columns import (
    InstalmentColumns,
    InstalmentReplyColumns,
    Upload,
    UploadAnswer,
)
from fleetcount_protocol.wire.device_stream import AGGREGATOR_MESSAGE, DEVICE_MESSAGE, AggregatorMessage, DeviceMessage
from fleetcount_relay.forwarding import Forwarder
from fleetcount_relay.metrics import RelayMetrics
from fleetcount_relay.service import RelayShell
from fleetcount_transport.admission.admission import Admission, AdmissionTable
from fleetcount_transport.admission.call import Call
from fleetcount_transport.admission.grpc_admission import GrpcAdmission
from fleetcount_transport.admission.identity import Identity


class Held:
    """An aggregator's way that answers nobody until it is told to, and then nothing."""

    aggregator_id = AggregatorId("alpha")

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def send(self, runs: Sequence[InstalmentColumns]) -> list[InstalmentReplyColumns]:
        await self.open.wait()
        return []


def upload(number: int) -> bytes:
    upload = Upload.of(
        AggregatorId("alpha"),
        [
            Instalment(
                window_id=WindowId(bytes(32)),
                report_id=ReportId(bytes([number]) * 16),
                session_id=SessionId(bytes(16)),
                key_number=1,
                round=1,
                public_share=b"",
                ciphertext=bytes(100),
            )
        ],
    )
    return DEVICE_MESSAGE.encode(DeviceMessage(upload=upload))


async def test_as_many_bytes_are_held_as_allowed_and_the_rest_is_busy() -> None:
    size, way = len(upload(1)), Held()
    shell = RelayShell({"alpha": cast("Forwarder", way)}, RelayMetrics())
    room = Admission(AdmissionTable(bytes_in_memory=64 * size, bytes_each=2 * size + size // 2))
    call = Call(Identity(b"device"), None, GrpcAdmission(room))
    take = cast("Any", shell)._take

    async def send(number: int) -> bytes:
        return await take(upload(number), call)

    waiting = [asyncio.create_task(send(number)) for number in (1, 2)]
    await asyncio.sleep(0)
    busy = AGGREGATOR_MESSAGE.decode(await asyncio.wait_for(send(3), 60)).upload
    assert busy is not None
    way.open.set()
    held = await asyncio.gather(*waiting)
    again = await asyncio.wait_for(send(4), 60)

    assert getattr(busy.only_one, "reason", None) is RejectReason.BUSY
    assert [*held, again] == [AGGREGATOR_MESSAGE.encode(AggregatorMessage(upload=UploadAnswer(runs=())))] * 3

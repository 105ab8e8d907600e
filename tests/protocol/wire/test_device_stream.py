"""The messages of a stream of answers: one of two kinds, of so many parts and so many bytes."""

from dataclasses import replace
from typing import Any

import pytest
from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.limits import MAX_BATCH_BYTES, MAX_SESSIONS_PER_REQUEST
from fleetcount_protocol.wire.device_columns import UPLOAD, Upload
from fleetcount_protocol.wire.device_stream import AGGREGATOR_MESSAGE, DEVICE_MESSAGE, DeviceMessage

from tests.support import wire_messages as samples
from tests.support.protocol_samples import instalment

SAMPLES = samples.device_messages()


@pytest.mark.parametrize(("codec", "sender"), [(DEVICE_MESSAGE, "device"), (AGGREGATOR_MESSAGE, "aggregator")])
def test_a_message_is_of_one_kind(codec: Any, sender: str) -> None:
    of_sessions, of_an_upload = (SAMPLES[f"{sender}_message_of_{kind}"][1] for kind in ("sessions", "an_upload"))

    both, neither = replace(of_sessions, upload=of_an_upload.upload), type(of_sessions)()
    for spoilt, word in ((both, "both"), (neither, "neither")):
        with pytest.raises(DecodeError, match=f"a message has {word} of sessions and an upload"):
            codec.decode(codec.encode(spoilt))


def test_a_message_has_sixty_four_requests_at_most() -> None:
    full = DeviceMessage(requests=(samples.session_request(),) * MAX_SESSIONS_PER_REQUEST)
    assert DEVICE_MESSAGE.decode(DEVICE_MESSAGE.encode(full)) == full

    one_more = DeviceMessage(requests=(*full.requests, full.requests[0]))
    with pytest.raises(DecodeError, match="more than 64 requests"):
        DEVICE_MESSAGE.decode(DEVICE_MESSAGE.encode(one_more))


def test_an_upload_as_long_as_one_may_be_fits_and_no_longer_one() -> None:
    def upload(size: int) -> Upload:
        parts = [replace(instalment(round=0), ciphertext=bytes(200_000))] * 5
        return Upload.of(samples.ALPHA, [*parts, replace(parts[0], ciphertext=bytes(size))])

    rest = MAX_BATCH_BYTES - len(UPLOAD.encode(upload(40_000))) + 40_000
    full = DeviceMessage(upload=upload(rest))
    assert len(UPLOAD.encode(upload(rest))) == MAX_BATCH_BYTES
    assert DEVICE_MESSAGE.decode(DEVICE_MESSAGE.encode(full)) == full
    data = DEVICE_MESSAGE.to_pb(DeviceMessage(upload=upload(rest + 1))).SerializeToString()
    with pytest.raises(DecodeError, match="more than 1048580"):
        DEVICE_MESSAGE.decode(data)

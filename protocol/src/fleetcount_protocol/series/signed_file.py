"""The `.question` file: a series with the signatures it has so far (docs/wire.md, "Series").

It must not sign or verify (`signing`).
"""

from typing import Final

from fleetcount_protocol.errors import DecodeError, UsageError
from fleetcount_protocol.layout import Reader, sized
from fleetcount_protocol.limits import MAX_SERIES_BYTES
from fleetcount_protocol.series.codec import SERIES_LABEL
from fleetcount_protocol.series.series import Series, SignedSeries, decode_series
from fleetcount_protocol.task.signatures import encode_signatures, fault_of_signatures, read_signatures

__all__ = [
    "MAX_SIGNED_SERIES_BYTES",
    "decode_signed_series",
    "encode_signed_series",
    "signed_series",
    "stored_series_bytes",
]

SIGNED_SERIES_LABEL: Final = b"FCSSER01"
MAX_SIGNED_SERIES_BYTES: Final = MAX_SERIES_BYTES + 512


def encode_signed_series(signed: SignedSeries) -> bytes:
    """Return the `.question` file of a series with the signatures it has so far.

    Raises:
        UsageError: a signature that has neither 0 nor 64 bytes, or not one place an aggregator.
    """
    fault = fault_of_signatures(signed.signatures, len(signed.series.aggregators))
    if fault:
        raise UsageError(fault)
    return SIGNED_SERIES_LABEL + sized(signed.series.canonical, 4) + encode_signatures(signed.signatures)


def decode_signed_series(data: bytes) -> SignedSeries:
    """Return the series and the signatures of a `.question` file, none of which is verified here.

    Raises:
        DecodeError: it is no such file.
    """
    reader = Reader(data, "signed series", MAX_SIGNED_SERIES_BYTES)
    reader.expect(SIGNED_SERIES_LABEL)
    series = decode_series(reader.sized(4, len(SERIES_LABEL), MAX_SERIES_BYTES))
    signatures = read_signatures(reader)
    reader.finish()
    return signed_series(series, signatures)


def stored_series_bytes(data: bytes) -> bytes:
    """Return the bytes that a `.question` file holds of its series, whether or not it may be asked.

    Raises:
        DecodeError: it is no such file.
    """
    reader = Reader(data, "signed series", MAX_SIGNED_SERIES_BYTES)
    reader.expect(SIGNED_SERIES_LABEL)
    return reader.sized(4, len(SERIES_LABEL), MAX_SERIES_BYTES)


def signed_series(series: Series, signatures: tuple[bytes, ...]) -> SignedSeries:
    """Return the pair, refusing signatures that cannot belong to the series.

    Raises:
        DecodeError: not one place an aggregator, or a signature that has neither 0 nor 64 bytes.
    """
    fault = fault_of_signatures(signatures, len(series.aggregators))
    if fault:
        raise DecodeError(fault)
    return SignedSeries(series=series, signatures=signatures)

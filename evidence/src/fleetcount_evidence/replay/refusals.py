"""Replays vectors of what must be refused: bytes, where they arrive, and the words of the refusal.

A case is one of three: bytes at a decoder (`decoder`, `data`, for long ones `then`: bytes and how often they follow); a
session request at an aggregator (`request` under `private_key` and `authority` at `now`); a report part at its
session (`instalment` under `window_key` at `position`).
"""

from collections.abc import Sequence
from typing import Final

from fleetcount_protocol.channel.certificates import parse_certificate
from fleetcount_protocol.channel.chain import WindowKey
from fleetcount_protocol.channel.hpke import HpkeKeyPair
from fleetcount_protocol.channel.session import accept_session, unseal_instalment
from fleetcount_protocol.errors import FleetcountError, PeerError
from fleetcount_protocol.ids import AggregatorId, SessionId
from fleetcount_protocol.wire.device import SESSION_REQUEST
from fleetcount_protocol.wire.device_columns import UPLOAD

from fleetcount_evidence.replay.decoders import decoders
from fleetcount_evidence.replay.files import (
    JsonObject,
    VectorFileError,
    entries_of,
    entry_at,
    hex_of,
    integer_of,
    text_of,
)

ALGORITHM: Final = "refusals"
_LARGEST: Final = 1 << 25


def is_refusal(case: JsonObject) -> bool:
    """Return whether a case says what must be refused, and not what a proof gives."""
    return "refusal" in case


def replay_refusals(cases: Sequence[JsonObject]) -> list[str]:
    """Return every case that is not refused in its own words, as a sentence.

    Raises:
        VectorFileError: a case that is none of the three, or names no decoder.
    """
    misses: list[str] = []
    for number, case in enumerate(cases):
        wanted = text_of(case, "refusal")
        try:
            _run(case)
        except VectorFileError as error:
            raise VectorFileError(f"case {number}: {error}") from error
        except PeerError as error:
            if words_of(error) != wanted:
                misses.append(f"case {number} is refused by {words_of(error)!r}, not {wanted!r}")
        else:
            misses.append(f"case {number} is taken and must be refused: {wanted}")
    return misses


def words_of(error: BaseException) -> str:
    """Return a refusal's text and, behind it, that of the error of ours that it came from; never a library's."""
    text, cause = str(error), error.__cause__
    return f"{text}: {cause}" if isinstance(cause, FleetcountError) and str(cause) not in text else text


def bytes_of(case: JsonObject) -> bytes:
    """Return the bytes of a case at a decoder.

    Raises:
        VectorFileError: more than 32 MiB, or fields of another form.
    """
    data = hex_of(case, "data")
    if "then" not in case:
        return data
    unit, times = (entry_at(entries_of(case, "then"), place, "then") for place in range(2))
    more, count = hex_of({"then": unit}, "then"), integer_of({"then": times}, "then")
    if not 0 <= len(more) * count <= _LARGEST:
        raise VectorFileError(f"{len(more)} bytes {count} times are not 0 to {_LARGEST}")
    return data + more * count


def _run(case: JsonObject) -> None:
    if "request" in case:
        key_id = integer_of(case, "key_id")
        accept_session(
            SESSION_REQUEST.decode(hex_of(case, "request")),
            {key_id: HpkeKeyPair(key_id, hex_of(case, "private_key"))},
            AggregatorId(text_of(case, "aggregator_id")),
            [parse_certificate(hex_of(case, "authority"))],
            integer_of(case, "now"),
        )
    elif "upload" in case:
        key = WindowKey(
            session_id=SessionId(hex_of(case, "session_id")),
            number=integer_of(case, "key_number"),
            key=hex_of(case, "window_key"),
        )
        unseal_instalment(key, integer_of(case, "position"), UPLOAD.decode(hex_of(case, "upload")).only_one)
    else:
        name = text_of(case, "decoder")
        decoder = decoders().get(name)
        if decoder is None:
            raise VectorFileError(f"no decoder is called {name!r}")
        decoder.decode(bytes_of(case))

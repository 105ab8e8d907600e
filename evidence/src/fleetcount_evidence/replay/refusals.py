"""Replays vectors of refusals: bytes that a receiver must refuse, the receiver, and the text of the refusal.

A case is one of three: bytes for a decoder (`decoder`, `data`, and for long data `then`: bytes and how often they
follow); a session request to an aggregator (`request`, with `private_key`, `authority` and `now`); a report part in its
session (`upload`, with `window_key` and `position`).
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
    """Return whether a case describes a refusal; other cases describe a proof."""
    return "refusal" in case


def replay_refusals(cases: Sequence[JsonObject]) -> list[str]:
    """Return a sentence for every case that is not refused with the text that it expects.

    Raises:
        VectorFileError: a case is none of the three, or names an unknown decoder.
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
            misses.append(f"case {number} is accepted and must be refused: {wanted}")
    return misses


def words_of(error: BaseException) -> str:
    """Return a refusal's text, followed by that of its cause if the cause is an error of this project.

    The text of a library's error is left out: it may change with the library's version.
    """
    text, cause = str(error), error.__cause__
    return f"{text}: {cause}" if isinstance(cause, FleetcountError) and str(cause) not in text else text


def bytes_of(case: JsonObject) -> bytes:
    """Return the bytes of a case for a decoder.

    Raises:
        VectorFileError: the part that `then` repeats has more than 32 MiB, or a field has the wrong form.
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
        [instalment] = UPLOAD.decode(hex_of(case, "upload")).instalments()
        unseal_instalment(key, integer_of(case, "position"), instalment)
    else:
        name = text_of(case, "decoder")
        decoder = decoders().get(name)
        if decoder is None:
            raise VectorFileError(f"no decoder is called {name!r}")
        decoder.decode(bytes_of(case))

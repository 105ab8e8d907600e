"""The release record as a JSON file for people; programs read only the canonical bytes, which it contains.

The readable part is not signed: a file whose readable part does not follow from the canonical bytes is refused.
"""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from fleetcount_mechanisms.statement import AdversaryView

from fleetcount_protocol.clock import utc_text
from fleetcount_protocol.errors import DecodeError, UsageError
from fleetcount_protocol.limits import MAX_JSON_BYTES
from fleetcount_protocol.release.record import Cell, ReleaseRecord, decode_record, plain_decimal
from fleetcount_protocol.window.window_json import window_to_json

FORMAT: Final = "fleetcount release record 1"
_PLACES: Final = 6


def record_to_json(record: ReleaseRecord, signatures: Sequence[bytes]) -> str:
    """Return the record with its signatures (in the window's order) as indented JSON, UTF-8, ending in a line feed.

    Raises:
        UsageError: not as many signatures as aggregators.
    """
    if len(signatures) != len(record.window.aggregators):
        raise UsageError(f"{len(signatures)} signatures for {len(record.window.aggregators)} aggregators")
    return json.dumps(_readable(record, signatures), ensure_ascii=False, indent=1) + "\n"


def record_from_json(text: str) -> tuple[ReleaseRecord, tuple[bytes, ...]]:
    """Return the record and its signatures, which `verify_record_signatures` verifies.

    Raises:
        DecodeError: not JSON of this format, or a readable part that differs from the canonical bytes.
    """
    parsed = _parse(text)
    record = decode_record(_base64(parsed.get("record"), "record"))
    listed = parsed.get("signatures")
    if not isinstance(listed, list) or len(listed) != len(record.window.aggregators):
        raise DecodeError("release file needs one signature an aggregator")
    signatures = tuple(_base64(_field(one, "signature"), "signature") for one in listed)
    # Compared as text, because 1, 1.0 and true are equal in Python and different for a reader.
    if _plain(_readable(record, signatures)) != _plain(parsed):
        raise DecodeError("the readable part of the release file is not what the signed record says")
    return record, signatures


def decimal_text(value: Fraction, places: int = _PLACES) -> str:
    """Return a fraction as decimal digits, rounded half to even at `places`, without trailing zeros."""
    scaled = round(value * 10**places)
    digits = f"{abs(scaled):0{places + 1}d}"
    text = f"{digits[:-places]}.{digits[-places:]}".rstrip("0").rstrip(".")
    return f"-{text}" if scaled < 0 else text


def sides_words(record: ReleaseRecord) -> str | None:
    """Return a sentence about the certainty of a one-sided release's sides; None for other releases."""
    if not record.window.release.thresholds:
        return None
    wrong = decimal_text(100 * (1 - record.level))
    sides = ['"safe" (at most the threshold)', '"danger" (above it)']
    if record.window.release.direction == "down":
        sides.reverse()
    return (
        f"{sides[0]} is never wrong; {sides[1]} is wrong in a cell with a chance of at most {wrong} %;"
        ' "not known" says nothing'
    )


def _readable(record: ReleaseRecord, signatures: Sequence[bytes]) -> dict[str, Any]:
    names = [str(aggregator.aggregator_id) for aggregator in record.window.aggregators]
    return {
        "format": FORMAT,
        "window_id": record.window_id.hex(),
        "released_at": record.released_at,
        "released_at_utc": utc_text(record.released_at),
        "level": str(record.level),
        "participants_at_least": record.participants_at_least,
        **_readable_window(record),
        "cells": [_readable_cell(record, cell) for cell in record.cells],
        **({"sides": words} if (words := sides_words(record)) else {}),
        "baseline_raw": record.baseline_raw,
        "noise": [
            {
                "aggregator_id": str(noise.aggregator_id),
                "law": noise.law,
                "epsilon": None,
            }
            | _texts(noise.parameters)
            | ({"coarser": {level: _texts(one) for level, one in noise.coarser.items()}} if noise.coarser else {})
            for noise in record.noise
        ],
        "privacy_statement": [_readable_view(view) for view in record.statement],
        "asked": window_to_json(record.window),
        "signatures": [
            {"aggregator_id": name, "signature": base64.b64encode(signature).decode()}
            for name, signature in zip(names, signatures, strict=True)
        ],
        "record": base64.b64encode(record.canonical).decode(),
    }


def _texts(parameters: Mapping[str, Fraction]) -> dict[str, str]:
    return {name: str(value) for name, value in parameters.items()}


def _readable_window(record: ReleaseRecord) -> dict[str, Any]:
    """Return the readable part about the question: the window, the participants, and the windows before."""
    question, chain, noised = record.window.question, record.chain, record.participants
    shown = None if noised is None else {"raw": noised.raw, "low": noised.low, "high": noised.high}
    return {
        "question_id": question.question_id.hex(),
        "window": question.index,
        "participants": shown,
        "previous_record": None if chain.previous is None else chain.previous.hex(),
        "previous_window": chain.previous_index,
        "missing_windows": [{"window": one.index, "reason": one.reason} for one in chain.missing],
    }


def _readable_cell(record: ReleaseRecord, cell: Cell) -> dict[str, Any]:
    readable: dict[str, Any] = {
        "value": cell.value,
        "label": cell.label,
        "raw": cell.raw,
        "estimate": decimal_text(cell.estimate),
        "low": cell.low,
        "high": cell.high,
    }
    side = record.side(cell)
    return readable if side is None else readable | {"side": side.value}


def _readable_view(view: AdversaryView) -> dict[str, str | None]:
    return {
        "adversary": view.adversary,
        "audience": view.audience,
        "epsilon": None if view.epsilon is None else plain_decimal(view.epsilon),
        "delta": plain_decimal(view.delta),
        "neighbours": view.neighbours,
        "sentence": view.sentence,
    }


def _parse(text: str) -> dict[str, Any]:
    if len(text) > MAX_JSON_BYTES:
        raise DecodeError(f"release file has {len(text)} characters, more than {MAX_JSON_BYTES}")
    try:
        parsed = json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"release file is no JSON of this format ({type(error).__name__})") from error
    if not isinstance(parsed, dict) or parsed.get("format") != FORMAT:
        raise DecodeError(f"release file does not say format {FORMAT!r}")
    return parsed


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _field(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else None


def _base64(value: object, what: str) -> bytes:
    if not isinstance(value, str):
        raise DecodeError(f"release file has no {what}")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise DecodeError(f"{what} of the release file is no base64") from None


def _plain(value: dict[str, Any]) -> str:
    return json.dumps(value, sort_keys=True)

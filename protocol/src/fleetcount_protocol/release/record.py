"""The release record, which all aggregators of a window sign and the public reads (docs/wire.md, "Release record").

It must not contain a round's sum, a share, the set digest or the exact number of participants. The aggregator opens the
numbers, analysis computes estimates and intervals; this module encodes, signs and verifies the record.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleetcount_mechanisms.answers import Side, side_of
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.statement import AdversaryView

from fleetcount_protocol.errors import DecodeError, SignatureError, UsageError
from fleetcount_protocol.ids import AggregatorId, Digest, WindowId
from fleetcount_protocol.layout import Reader, check_text, sized, text_bytes, uint, wide_fraction_bytes
from fleetcount_protocol.limits import MAX_RECORD_BYTES, MAX_UNIX_TIME, MAX_WINDOW_BYTES
from fleetcount_protocol.release.chain import ChainLink, check_link, encode_link, read_link
from fleetcount_protocol.window.fields import level_name
from fleetcount_protocol.window.signing import TrustedAggregator, verify_by
from fleetcount_protocol.window.window import Window, decode_window

RECORD_LABEL: Final = b"FCRECD02"
"""First bytes of a record."""
_MAX_VIEWS: Final = 32
"""Each adversary has up to three views: for one answer, one day and the whole question."""
_MAX_SENTENCE_BYTES: Final = 1_000
_MAX_INT64: Final = 2**63 - 1
_PLAIN_DECIMAL: Final = re.compile(r"(?:0|[1-9][0-9]{0,9})(?:\.[0-9]{0,24}[1-9])?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One published number: value 1..V and its label, the opened noised number, estimate and interval ends.

    The cells of coarser levels follow as values from V + 1 on, level by level, the total last. `raw` is the opened
    number of this cell, `estimate` the unbiased estimate, which may be negative, `low` <= `high` the whole-number ends
    of the interval at the window's level.
    """

    value: int
    label: str
    raw: int
    estimate: Fraction
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisedParticipants:
    """The number of participants: the opened number, which has the noise of every aggregator, and interval ends.

    `low` <= `high` are the whole-number ends of the interval at the window's level.
    """

    raw: int
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseLaw:
    """The law of an aggregator's noise on every opened number: its name and parameters (mechanisms, `noise`).

    `parameters` are those of the cells; `coarser` has those of every level above them, by the level's name in labels:
    the side of its squares or how many bins, as in "2", "margin 1", "weighted sum", "total" or, of sets, "told any".
    """

    aggregator_id: AggregatorId
    law: str
    parameters: Mapping[str, Fraction]
    coarser: Mapping[str, Mapping[str, Fraction]] = field(default_factory=dict)


def noise_laws(window: Window) -> tuple[NoiseLaw, ...]:
    """Return the law of each aggregator's noise, in the window's order; each adds noise of full strength."""
    law, above = window.design.noise, zip(window.release.coarser, window.design.coarser, strict=True)
    coarser = {level_name(window.domain, level): one.parameters for level, one in above}
    return tuple(
        NoiseLaw(aggregator_id=one.aggregator_id, law=law.name, parameters=law.parameters, coarser=coarser)
        for one in window.aggregators
    )


@dataclass(frozen=True, kw_only=True)
class ReleaseRecord:
    """A window's release: its cells with intervals, and the privacy statement.

    `baseline_raw` is the opened number of output 0 in response mode (for vector Mangat, of the participation bit),
    which the estimates need; None in the other modes. `released_at` is a Unix time on the window's grid, not before the
    last round closed. Level, noise and the least number of participants follow from the window. `chain` is about the
    windows before; `participants` is None unless the question has noised participants.

    Raises:
        UsageError: cells that are not those of the window with its labels, ends out of order, numbers beyond 64 bits,
            a time off the grid, a statement that is empty or too long, or a chain that does not account for every
            window before.
    """

    window: Window
    cells: tuple[Cell, ...]
    statement: tuple[AdversaryView, ...]
    released_at: int
    chain: ChainLink
    baseline_raw: int | None = None
    participants: NoisedParticipants | None = None

    def __post_init__(self) -> None:
        _check_cells(self.window, self.cells)
        if (self.baseline_raw is not None) != self.window.design.baseline_opened:
            raise UsageError("baseline_raw is for response mode, and needed there")
        _check_int64("baseline_raw", self.baseline_raw or 0)
        late_enough = self.window.round_two_closes <= self.released_at <= MAX_UNIX_TIME
        if not late_enough or self.released_at % self.window.time_precision_s:
            raise UsageError(
                f"released_at is {self.released_at}, allowed: a multiple of {self.window.time_precision_s} s "
                f"from {self.window.round_two_closes} on"
            )
        _check_statement(self.statement)
        _check_window(self)

    @property
    def window_id(self) -> WindowId:
        """The window of the record."""
        return self.window.window_id

    @property
    def level(self) -> Fraction:
        """The level of every interval."""
        return self.window.release.level

    @property
    def participants_at_least(self) -> int:
        """min_batch_size, the lower bound that every aggregator checked; the record has no exact number."""
        return self.window.min_batch_size

    @property
    def noise(self) -> tuple[NoiseLaw, ...]:
        """The noise law of each aggregator, in the window's order."""
        return noise_laws(self.window)

    @cached_property
    def canonical(self) -> bytes:
        """The bytes that are signed."""
        return encode_record(self)

    @cached_property
    def digest(self) -> Digest:
        """SHA-256 of the canonical bytes, which the question's next record contains."""
        return Digest(hashlib.sha256(self.canonical).digest())

    def side(self, cell: Cell) -> Side | None:
        """Return the side of its threshold on which a one-sided release shows a count; None in other releases.

        "safe" is never wrong where the noise only adds, "danger" where it only takes away ("down"); the other one is
        wrong in a cell with probability 1 - level at most.
        """
        release = self.window.release
        if not release.thresholds:
            return None
        low, high = (cell.low, cell.raw) if release.direction == "up" else (cell.raw, cell.high)
        return side_of(low, high, release.thresholds[cell.value - 1])


def encode_record(record: ReleaseRecord) -> bytes:
    """Return the canonical bytes of a record.

    Raises:
        UsageError: they are more than `MAX_RECORD_BYTES`.
    """
    baseline = b"" if record.baseline_raw is None else _int64(record.baseline_raw)
    parts = [
        RECORD_LABEL,
        sized(record.window.canonical, 4),
        encode_link(record.chain),
        _encode_participants(record.participants),
        uint(record.released_at, 8),
        uint(bool(baseline), 1),
        baseline,
        uint(len(record.cells), 2),
        *(_encode_cell(cell) for cell in record.cells),
        uint(len(record.statement), 1),
        *(_encode_view(view) for view in record.statement),
    ]
    encoded = b"".join(parts)
    if len(encoded) > MAX_RECORD_BYTES:
        raise UsageError(f"record has {len(encoded)} bytes, allowed: at most {MAX_RECORD_BYTES}")
    return encoded


def decode_record(data: bytes) -> ReleaseRecord:
    """Return the record whose canonical bytes these are.

    Raises:
        DecodeError: they are not the canonical bytes of a record.
    """
    reader = Reader(data, "record", MAX_RECORD_BYTES)
    reader.expect(RECORD_LABEL)
    window = decode_window(reader.sized(4, 1, MAX_WINDOW_BYTES))
    chain, participants = read_link(reader), _read_participants(reader)
    released_at = reader.uint(8)
    baseline = reader.int64() if reader.flag() else None
    count = reader.count(2, window.design.cell_count, window.design.cell_count)
    cells = tuple(_read_cell(reader, value, window.label(value)) for value in range(1, count + 1))
    views = tuple(_read_view(reader) for _ in range(reader.count(1, 1, _MAX_VIEWS)))
    reader.finish()
    try:
        record = ReleaseRecord(
            window=window,
            cells=cells,
            statement=views,
            released_at=released_at,
            baseline_raw=baseline,
            chain=chain,
            participants=participants,
        )
    except UsageError as error:
        raise DecodeError(f"record that cannot be: {error}") from error
    if record.canonical != data:
        raise DecodeError("record is not in its canonical form")
    return record


def sign_record(record: ReleaseRecord, key: Ed25519PrivateKey) -> bytes:
    """Return an aggregator's Ed25519 signature over the canonical bytes, 64 bytes.

    Run by each aggregator after it has recomputed the whole record.
    """
    return key.sign(record.canonical)


def verify_record_signatures(
    record: ReleaseRecord,
    signatures: Sequence[bytes],
    trusted: Mapping[AggregatorId, TrustedAggregator] | None = None,
) -> None:
    """Accept a record only with valid signatures of all aggregators of its window.

    With `trusted`, each must be trusted with the same key as in the window, and may have signed with a successor of it
    that was valid when the record was made. Without `trusted` the keys are those of the window inside the record: the
    signatures then prove that the holders of these keys agree; that they are the right aggregators only follows for a
    reader who knows the window id.

    Raises:
        SignatureError: a signature that is missing or does not verify, or an aggregator that is not trusted.
    """
    if len(signatures) != len(record.window.aggregators):
        raise SignatureError(f"{len(signatures)} signatures for {len(record.window.aggregators)} aggregators")
    for aggregator, signature in zip(record.window.aggregators, signatures, strict=True):
        known = None if trusted is None else trusted.get(aggregator.aggregator_id)
        if trusted is not None and (known is None or aggregator.signing_public_key not in known.keys):
            raise SignatureError(f"aggregator {aggregator.aggregator_id} is not trusted under this key")
        what = f"signature of {aggregator.aggregator_id} under the record of {record.window.name!r}"
        verify_by(aggregator, known, signature, record.canonical, what, record.released_at)


def _check_window(record: ReleaseRecord) -> None:
    question, participants = record.window.question, record.participants
    if (participants is not None) != question.noised_participants:
        raise UsageError("participants is for windows of a question with noised participants, and needed there")
    check_link(record.chain, question.index)
    if participants is not None:
        for what in ("raw", "low", "high"):
            _check_int64(f"{what} of participants", getattr(participants, what))
        if participants.low > participants.high:
            raise UsageError(f"interval of participants is {participants.low} to {participants.high}")


def _encode_participants(participants: NoisedParticipants | None) -> bytes:
    if participants is None:
        return uint(0, 1)
    return uint(1, 1) + _int64(participants.raw) + _int64(participants.low) + _int64(participants.high)


def _read_participants(reader: Reader) -> NoisedParticipants | None:
    if not reader.flag():
        return None
    return NoisedParticipants(raw=reader.int64(), low=reader.int64(), high=reader.int64())


def _check_int64(what: str, value: int) -> None:
    if type(value) is not int or abs(value) > _MAX_INT64:
        raise UsageError(f"{what} is {str(value)[:40]}, allowed: whole numbers of 63 bits and a sign")


def _int64(value: int) -> bytes:
    return value.to_bytes(8, signed=True)


def _check_cells(window: Window, cells: Sequence[Cell]) -> None:
    count = window.design.cell_count
    if [cell.value for cell in cells] != list(range(1, count + 1)):
        raise UsageError(f"cells must be the values 1 to {count}, each once, in order")
    for cell in cells:
        for what in ("raw", "low", "high"):
            _check_int64(f"{what} of cell {cell.value}", getattr(cell, what))
        if cell.low > cell.high:
            raise UsageError(f"interval of cell {cell.value} is {cell.low} to {cell.high}")
        if cell.label != window.label(cell.value):
            raise UsageError(f"label of cell {cell.value} is not the window's")


def _check_statement(statement: Sequence[AdversaryView]) -> None:
    if not 1 <= len(statement) <= _MAX_VIEWS:
        raise UsageError(f"statement has {len(statement)} views, allowed: 1 to {_MAX_VIEWS}")
    for view in statement:
        for number in (view.delta, view.epsilon or view.delta):
            if not number.is_finite() or not _PLAIN_DECIMAL.fullmatch(plain_decimal(number)):
                raise UsageError(f"statement holds {number}, allowed: 0 to 10 digits before and 25 behind the point")
        for text in _texts(view):
            try:
                check_text(text, 1, _MAX_SENTENCE_BYTES)
            except ValueError as error:
                raise UsageError(f"statement: {error}") from None


def _texts(view: AdversaryView) -> tuple[str, str, str, str, str]:
    return view.adversary, view.audience, plain_decimal(view.delta), view.neighbours, view.sentence


def plain_decimal(value: Decimal) -> str:
    """Return a decimal of at least 0 as plain digits: 0.00001 and never 1E-5, no trailing zeros behind the point."""
    text = f"{abs(value):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _encode_cell(cell: Cell) -> bytes:
    return _int64(cell.raw) + wide_fraction_bytes(cell.estimate) + _int64(cell.low) + _int64(cell.high)


def _read_cell(reader: Reader, value: int, label: str) -> Cell:
    raw, estimate = reader.int64(), reader.wide_fraction()
    return Cell(value=value, label=label, raw=raw, estimate=estimate, low=reader.int64(), high=reader.int64())


def _encode_view(view: AdversaryView) -> bytes:
    epsilon = b"" if view.epsilon is None else text_bytes(plain_decimal(view.epsilon))
    return uint(bool(epsilon), 1) + epsilon + b"".join(text_bytes(text) for text in _texts(view))


def _read_view(reader: Reader) -> AdversaryView:
    epsilon = _read_decimal(reader) if reader.flag() else None
    adversary, audience = (reader.text(1, _MAX_SENTENCE_BYTES) for _ in range(2))
    delta = _read_decimal(reader)
    neighbours, sentence = (reader.text(1, _MAX_SENTENCE_BYTES) for _ in range(2))
    try:
        return AdversaryView(
            adversary=adversary,
            audience=audience,
            epsilon=epsilon,
            delta=delta,
            neighbours=neighbours,
            sentence=sentence,
        )
    except MechanismError as error:
        raise DecodeError(f"record holds a statement that cannot be: {error}") from error


def _read_decimal(reader: Reader) -> Decimal:
    text = reader.text(1, 40)
    if not _PLAIN_DECIMAL.fullmatch(text):
        raise DecodeError("record holds a number that is not plain digits")
    return Decimal(text)

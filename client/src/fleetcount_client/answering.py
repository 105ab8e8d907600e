"""From a window, a truth and coins to the parts of a report: the device's whole mathematics.

Pure: randomness is an argument, nothing is stored, sealed or sent, and no truth or coin appears in a text.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, cast

from fleetcount_mechanisms.answers import AnswerForm
from fleetcount_mechanisms.randomness import RandomSource, uniform_below
from fleetcount_mechanisms.responses import MangatVector, RandomizedResponse
from fleetcount_mechanisms.sampling import SamplingDie, toss, toss_in_unit
from fleetcount_protocol.channel.chain import WindowKey
from fleetcount_protocol.errors import DecodeError, QuestionError
from fleetcount_protocol.ids import Digest, QuestionId, ReportId, SessionId, new_report_id
from fleetcount_protocol.layout import uint
from fleetcount_protocol.window.domain import Cross, Measured, Prefixes, SingleDomain, value_of
from fleetcount_protocol.window.signal import converted
from fleetcount_protocol.window.window import Window, context_of, prio3_for

from fleetcount_client.signals import Reading
from fleetcount_client.units import SAME, conversion

MAX_SECRET_BYTES: Final = 304
_VERSION: Final = 2
_SEED_BYTES: Final = 32
_RAND_LABEL: Final = b"fleetcount device rand v1"
_HEADER: Final = struct.Struct(">B16s32sHHB")
_KEY: Final = struct.Struct(">16sH32s")

Truth = int | tuple[int, ...]
"""A position 0..V, or for vector Mangat one bit for each of the values 1..V."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportParts:
    """What each aggregator gets in one message, in the window's order, before it is sealed.

    `round` is 1 or 2, or 0 for a report that travels whole. `public_share` is the same for all, empty in round one.
    """

    report_id: ReportId
    round: int
    public_share: bytes
    parts: tuple[bytes, ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoRoundSecret:
    """All a device must remember between the rounds: name, seed, both positions 0..V, a window key for each aggregator.

    Prio3's own randomness (`rand`, 64 k bytes) is not kept: SHAKE-256 gives it again from the 32-byte seed, so that the
    whole state stays at 54 + 50 k bytes, 304 for five aggregators.
    """

    report_id: ReportId
    seed: bytes = field(repr=False)
    round_one: int = field(repr=False)
    round_two: int = field(repr=False)
    keys: tuple[WindowKey, ...]

    def encode(self) -> bytes:
        """Return the state as bytes for the device's own store: `MAX_SECRET_BYTES` at most."""
        header = _HEADER.pack(_VERSION, self.report_id, self.seed, self.round_one, self.round_two, len(self.keys))
        return header + b"".join(_KEY.pack(key.session_id, key.number, key.key) for key in self.keys)

    @classmethod
    def decode(cls, encoded: bytes) -> "TwoRoundSecret":
        """Return the state `encode` gave; raises DecodeError for anything else."""
        if len(encoded) < _HEADER.size:
            raise DecodeError(f"a stored answer has {len(encoded)} bytes, not {_HEADER.size} or more")
        version, report_id, seed, round_one, round_two, count = _HEADER.unpack_from(encoded)
        size = _HEADER.size + _KEY.size * count
        if version != _VERSION or len(encoded) != size:
            raise DecodeError(
                f"a stored answer of version {version} has {len(encoded)} bytes; allowed is {_VERSION} with {size}"
            )
        return cls(
            report_id=ReportId(report_id),
            seed=seed,
            round_one=round_one,
            round_two=round_two,
            keys=tuple(
                WindowKey(session_id=SessionId(session_id), number=number, key=key)
                for session_id, number, key in _KEY.iter_unpack(encoded[_HEADER.size :])
            ),
        )


def truth_of(
    window: Window, reading: Reading | Sequence[Reading], source: RandomSource, choice: bytes | None = None
) -> Truth:
    """Return what a reading means for the window: a position 0..V, or V bits where the window asks for a vector.

    Asked once a window: a number between two points is rounded at random by `source`, and what is drawn is the truth
    from then on, as if the device had read it. A cross has a reading for each of its parts, in their order: it is "none
    of them" where any part is.

    A set of values makes sense only for a vector and for codes; elsewhere a set of one is that value, any other is
    "none of them". Of more values than a direct question lets a device tell at once so many are told, each choice with
    the same probability. Of several codes one is told, each with the same probability: by `choice` (`choice_of`), the
    same in all steps of a walk, or without it by `source`. What can never be a value is "none of them" as well;
    `fault_of` says so to the owner. A number of another unit than the question's is converted.
    """
    domain, vector = window.domain, window.vector
    readings = [reading] if isinstance(reading, Reading) else reading
    if isinstance(domain, Cross):
        found = [_alone(_positions(part.domain, one, source)) for part, one in zip(domain.parts, readings, strict=True)]
        positions = {domain.together(found)} - {0}
    else:
        (one,) = readings
        if isinstance(domain, Prefixes) and domain.codes is not None and not vector:
            return _told(domain, one, source, choice)
        positions = _positions(domain, one, source)
    if vector:
        told = _some(positions, window.design.levels.most, source) if window.design.levels.most > 1 else positions
        return tuple(int(value in told) for value in range(1, window.values + 1))
    return _alone(positions)


def _positions(domain: SingleDomain, reading: Reading, source: RandomSource) -> set[int]:
    """Return the values 1..V that a reading is: at most one, but of a set of values."""
    value = reading.value
    way = conversion(reading.unit, domain.unit) if isinstance(domain, Measured) else SAME
    if way is None:
        value = None
    elif way != SAME:
        value = converted(value, way.factor, way.offset)
    values = value if isinstance(value, frozenset) else (value,)
    return {value_of(domain, one, source) for one in values} - {0}


def _some(positions: set[int], most: int, source: RandomSource) -> set[int]:
    left = sorted(positions)
    while len(left) > most:
        left.pop(uniform_below(source, len(left)))
    return set(left)


def _alone(positions: set[int]) -> int:
    return next(iter(positions)) if len(positions) == 1 else 0


def _told(domain: Prefixes, reading: Reading, source: RandomSource, choice: bytes | None) -> int:
    """Return the prefix of the one code that is told of those read, 0 of none."""
    values = reading.value if isinstance(reading.value, frozenset) else (reading.value,)
    numbers = [number for one in values if (number := domain.number_of(one)) is not None]
    told = _chosen(numbers, source.random_bytes(_CHOICE_BYTES) if choice is None else choice)
    return 0 if told is None else domain.holder_of(told)


# A coin that holds for a day or for a question is derived and never stored: from a secret of the device and the name of
# its unit, so that leaving and joining again, a crash or a lost row toss nothing anew. It must not be shown, logged or
# kept; only the device's own secret is.

_COIN_LABEL: Final = b"fleetcount device coin v1"
_SLOT_LABEL: Final = b"fleetcount device slot v1"
_CHOICE_LABEL: Final = b"fleetcount device choice v1"
_CHOICE_BYTES: Final = 32
_BLOCK_BYTES: Final = 64


class _DerivedBytes:
    """The stream SHAKE-256(label || secret || unit || i), block after block: uniform to all who lack the secret."""

    __slots__ = ("_count", "_left", "_seed")

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._count = 0
        self._left = b""

    def random_bytes(self, count: int, /) -> bytes:
        """Return the next bytes of the stream."""
        while len(self._left) < count:
            self._left += hashlib.shake_256(self._seed + uint(self._count, 8)).digest(_BLOCK_BYTES)
            self._count += 1
        found, self._left = self._left[:count], self._left[count:]
        return found


def coin_of(secret: bytes, unit: bytes, rate: Fraction) -> bool:
    """Toss the sampling coin of a unit of a question: True with probability exactly `rate`.

    All windows of the unit get the same coin, drawn by rejection. `secret` is the device's own, `unit` the unit's name
    (`charges.unit_id`).
    """
    number = uniform_below(_DerivedBytes(_COIN_LABEL + secret + unit), rate.denominator)
    return number < rate.numerator


def slot_of(secret: bytes, question_id: QuestionId, one_in: int) -> int:
    """Return in which of `one_in` windows the device is asked, 0 to one_in - 1, each with probability exactly 1/one_in.

    It follows from the device's own secret and the signed question, so that nobody else knows it before the answer,
    nobody can choose a question that meets a device in a window of his choice, and it is the same in every cycle.
    """
    return uniform_below(_DerivedBytes(_SLOT_LABEL + secret + question_id), one_in)


def choice_of(secret: bytes, question_id: QuestionId, walk: int) -> bytes:
    """Return the 32 bytes by which a device chooses which of several codes it tells in all steps of a walk."""
    return hashlib.shake_256(_CHOICE_LABEL + secret + question_id + uint(walk, 4)).digest(_CHOICE_BYTES)


def _chosen(numbers: Iterable[int], choice: bytes) -> int | None:
    """Return one of several codes, None of none: each with the same probability to all who lack `choice`.

    A code that comes or goes between two steps of a walk changes nothing, unless it is the one.
    """
    return min(
        numbers, key=lambda number: hashlib.shake_256(choice + uint(number, 4)).digest(_CHOICE_BYTES), default=None
    )


def draw_two_round(
    window: Window,
    truth: Truth,
    keys: tuple[WindowKey, ...],
    source: RandomSource,
    sampled: bool | None = None,
    *,
    device: Digest,
) -> TwoRoundSecret:
    """Toss the die for both rounds and draw the report's name and seed (device, once a window; [SP] section 4).

    `sampled` is the coin of the window's unit where it holds for several windows (`coin_of`); None tosses it with the
    rest. `device` is the digest of the device's public key, to which the report's name is bound.

    Raises:
        QuestionError: the window does not ask by Sampling Privacy.
    """
    if not isinstance(window.mechanism, SamplingDie) or not isinstance(truth, int):
        raise QuestionError(f"window {window.name!r} has mode {window.mode.name}, not SAMPLING")
    die = window.mechanism
    answer = toss(die, truth, source) if sampled is None else toss_in_unit(die, sampled, truth, source)
    return TwoRoundSecret(
        report_id=new_report_id(window.window_id, device, source),
        seed=source.random_bytes(_SEED_BYTES),
        round_one=answer.round_one,
        round_two=answer.round_two,
        keys=keys,
    )


def round_one_parts(window: Window, secret: TwoRoundSecret) -> ReportParts:
    """Return the first instalments: 8 (V + 1) bytes for the leader, a seed for every helper; no public share."""
    from fleetcount_protocol.vdaf.prio3 import first_instalments  # The proof layer: only when a window is answered.

    prio3 = prio3_for(window)
    parts = first_instalments(prio3, context_of(window), secret.report_id, _rand(window, secret), secret.round_one)
    return ReportParts(report_id=secret.report_id, round=1, public_share=b"", parts=tuple(parts))


def round_two_parts(window: Window, secret: TwoRoundSecret) -> ReportParts:
    """Return the second instalments with the public share: of one size for every device, sampled or not."""
    from fleetcount_protocol.vdaf.prio3 import (
        second_instalments,  # The proof layer: only when a window is answered.
    )

    prio3 = prio3_for(window)
    public_share, parts = second_instalments(
        prio3, context_of(window), secret.report_id, _rand(window, secret), secret.round_one, secret.round_two
    )
    return ReportParts(report_id=secret.report_id, round=2, public_share=public_share, parts=tuple(parts))


def envelope_parts(window: Window, secret: TwoRoundSecret) -> ReportParts:
    """Return both rounds in one message: the whole input shares, for windows of upload style ONE_ENVELOPE."""
    measurement = (secret.round_one, secret.round_two)
    public_share, parts = prio3_for(window).shard(
        context_of(window), measurement, secret.report_id, _rand(window, secret)
    )
    return ReportParts(report_id=secret.report_id, round=0, public_share=public_share, parts=tuple(parts))


def one_round_parts(window: Window, truth: Truth, source: RandomSource, *, device: Digest) -> ReportParts:
    """Return the only message of a window in response or direct mode: randomized on the device, or the truth in shares.

    Raises:
        QuestionError: the window asks in two rounds.
    """
    measurement = _measurement(window, truth, source)
    prio3 = prio3_for(window)
    report_id = new_report_id(window.window_id, device, source)
    rand = source.random_bytes(prio3.rand_size)
    public_share, parts = prio3.shard(context_of(window), measurement, report_id, rand)
    return ReportParts(report_id=report_id, round=0, public_share=public_share, parts=tuple(parts))


def _measurement(window: Window, truth: Truth, source: RandomSource) -> Truth:
    answer, form = window.design.answer, window.design.form
    if form is AnswerForm.TRUTH:
        return truth
    if form is AnswerForm.BITS:
        bits = (
            truth if isinstance(truth, tuple) else tuple(int(value == truth) for value in range(1, window.values + 1))
        )
        # The first bit is not an answer: it says that the device takes part (docs/wire.md, "Modes").
        return (1, *cast("MangatVector", answer).randomize_bits(bits, source))
    if form is AnswerForm.POSITION and isinstance(truth, int):
        return cast("RandomizedResponse", answer).randomize(truth, source)
    raise QuestionError(f"window {window.name!r} has mode {window.mode.name}, not RESPONSE or DIRECT")


def _rand(window: Window, secret: TwoRoundSecret) -> bytes:
    """Return Prio3's randomness of this report, the same at every call: SHAKE-256(label || window || report ||
    seed).
    """
    stream = hashlib.shake_256(_RAND_LABEL + window.window_id + secret.report_id + secret.seed)
    return stream.digest(prio3_for(window).rand_size)

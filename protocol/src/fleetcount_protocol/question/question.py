"""The question: one signed counting question with one or more windows, immutable, the same bytes for every party.

The constructor of `Question` checks every rule, so every `Question` may be asked; `window_at` makes its windows.
"""

import hashlib
import hmac
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Self

from fleetcount_mechanisms.accounting.vectors import ScheduleShape
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.sampling import SamplingDie

from fleetcount_protocol.errors import DecodeError, QuestionError, UsageError
from fleetcount_protocol.ids import AggregatorId, QuestionId, WindowId
from fleetcount_protocol.layout import Reader, fraction_bytes, sized, uint
from fleetcount_protocol.limits import (
    MAX_DRILL_DOWN_LEVELS,
    MAX_QUESTION_BYTES,
    MAX_QUESTION_LIFETIME_S,
    MAX_QUESTION_WINDOWS,
    MAX_UNIX_TIME,
    MAX_WINDOW_LIFETIME_S,
    MAX_WINDOW_S,
    VERIFY_KEY_BYTES,
)
from fleetcount_protocol.question.fields import (
    Admission,
    Coin,
    DrillDown,
    Participants,
    QuestionFields,
    Schedule,
    Submission,
    candidates,
    window_fields,
    window_ref,
    window_times,
)
from fleetcount_protocol.window.codec import (
    encode_question,
    encode_terms,
    encode_times,
    read_question,
    read_terms,
    window_label,
)
from fleetcount_protocol.window.domain import MAX_VALUES, PLACE_BITS, Prefixes
from fleetcount_protocol.window.fields import Mode, ReleaseKind, UploadStyle, WindowFields
from fleetcount_protocol.window.keys import encode_signatures, fault_of_signatures, read_signatures
from fleetcount_protocol.window.window import Window, check_fraction, check_range, check_window, require

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from fleetcount_protocol.window.signing import TrustedAggregator

# The canonical bytes of a question's fields (docs/wire.md, "Question").
#
# The fields that all windows share have the same bytes in the question and in a window, so that a window's bytes are
# cut from the question's, with the window's times in between.

QUESTION_LABEL: Final = b"FCQUES01"
_FIXED: Final = 1
_FROM_SUBMISSION: Final = 2
_EVERY_WINDOW: Final = 0
_DRILL_DOWN: Final = 1
_ONE_WINDOW_IN: Final = 2


def encode_question_fields(question: QuestionFields) -> bytes:
    """Return the canonical bytes, which are signed and hashed into the question id; a start does not change them.

    Raises:
        QuestionError: they are more than `MAX_QUESTION_BYTES`.
    """
    window = window_fields(question, QuestionId(bytes(QuestionId.SIZE)), 0)
    parts = (
        QUESTION_LABEL,
        encode_question(window),
        _encode_schedule(question.schedule),
        uint(question.coin.value, 1),
        uint(question.participants.value, 1),
        uint(question.admission.value, 1),
        fraction_bytes(question.delta),
        _encode_steps(question.drill_down, question.one_in),
        encode_terms(window),
    )
    encoded = b"".join(parts)
    if len(encoded) > MAX_QUESTION_BYTES:
        raise QuestionError(f"question has {len(encoded)} bytes, allowed: at most {MAX_QUESTION_BYTES}")
    return encoded


def decode_question_fields(data: bytes) -> QuestionFields:
    """Return the fields that these bytes encode; the rules of a question are not checked.

    Raises:
        DecodeError: the bytes are not the fields of a question.
        QuestionError, MechanismError: a domain or a mechanism with a value outside its range.
    """
    reader = Reader(data, "question", MAX_QUESTION_BYTES)
    reader.expect(QUESTION_LABEL)
    question = read_question(reader)
    schedule = _read_schedule(reader)
    coin = Coin(reader.count(1, 1, len(Coin)))
    participants = Participants(reader.count(1, 1, len(Participants)))
    if (admission := reader.uint(1)) != Admission.CERTIFICATE.value:
        raise DecodeError(f"admission is of kind {admission}, allowed: {Admission.CERTIFICATE.value}, by certificate")
    delta = reader.fraction()
    kind = reader.count(1, _EVERY_WINDOW, _ONE_WINDOW_IN)
    drill_down = _read_drill_down(reader) if kind == _DRILL_DOWN else None
    one_in = reader.uint(4) if kind == _ONE_WINDOW_IN else 1
    terms = read_terms(reader)
    reader.finish()
    return QuestionFields(
        **question,
        schedule=schedule,
        coin=coin,
        participants=participants,
        admission=Admission(admission),
        delta=delta,
        verify_seed_digest=terms.pop("verify_key_digest"),
        **terms,
        drill_down=drill_down,
        one_in=one_in,
    )


def _encode_steps(walk: DrillDown | None, one_in: int) -> bytes:
    if walk is None:
        return uint(_EVERY_WINDOW, 1) if one_in == 1 else uint(_ONE_WINDOW_IN, 1) + uint(one_in, 4)
    levels = uint(len(walk.levels), 1) + b"".join(uint(bits, 1) for bits in walk.levels)
    return uint(_DRILL_DOWN, 1) + levels + uint(walk.threshold, 4) + uint(walk.most_survivors, 2)


def _read_drill_down(reader: Reader) -> DrillDown:
    levels = tuple(reader.uint(1) for _ in range(reader.count(1, 2, MAX_DRILL_DOWN_LEVELS)))
    return DrillDown(levels=levels, threshold=reader.uint(4), most_survivors=reader.uint(2))


def _encode_schedule(schedule: Schedule) -> bytes:
    lengths = (schedule.every_s, schedule.windows, schedule.round_one_s, schedule.round_two_s, schedule.expiry_s)
    start = schedule.submission
    if start is None:
        begins = uint(_FIXED, 1) + uint(schedule.opens(0), 8)
    else:
        begins = uint(_FROM_SUBMISSION, 1) + uint(start.delay_s, 4) + uint(start.earliest, 8) + uint(start.latest, 8)
    return begins + b"".join(uint(length, 4) for length in lengths)


def _read_schedule(reader: Reader) -> Schedule:
    first, submission = None, None
    if reader.count(1, _FIXED, _FROM_SUBMISSION) == _FIXED:
        first = reader.uint(8)
    else:
        submission = Submission(delay_s=reader.uint(4), earliest=reader.uint(8), latest=reader.uint(8))
    every_s, windows, round_one_s, round_two_s, expiry_s = (reader.uint(4) for _ in range(5))
    return Schedule(
        first=first,
        every_s=every_s,
        windows=windows,
        round_one_s=round_one_s,
        round_two_s=round_two_s,
        expiry_s=expiry_s,
        submission=submission,
    )


# The rules of every question (docs/wire.md, "Rules of a question"): schedule, coin, promise, windows.

_LARGEST_DELTA: Final = Fraction(1, 1000)
_LARGEST_THRESHOLD: Final = 2**32 - 1
ONE_ANSWER_PERIOD_S: Final = 30 * 86_400
"""A device that is asked in one window of several answers at most once in so many seconds."""


def check_question(question: QuestionFields) -> None:
    """Refuse a question that breaks a rule: its own rules, then those of a window for its first and its last window.

    These two are enough: windows differ only in their times, by multiples of `every_s`.

    Raises:
        QuestionError: with the field, its value and the allowed range.
    """
    _check_lengths(question)
    _check_window(question, 0)
    _check_schedule(question)
    _check_promise(question)
    if question.drill_down is not None:
        _check_drill_down(question, question.drill_down)
    if question.one_in != 1:
        check_one_in(question.one_in, question.mode, question.schedule.every_s)
    if question.schedule.windows > 1:
        _check_window(question, question.schedule.windows - 1)


def _check_lengths(question: QuestionFields) -> None:
    schedule = question.schedule
    if (start := schedule.submission) is not None:
        check_range("delay_s", start.delay_s, 0, MAX_QUESTION_LIFETIME_S)
        check_range("earliest start", start.earliest, 0, MAX_UNIX_TIME)
        check_range("latest start", start.latest, start.earliest, start.earliest + MAX_QUESTION_LIFETIME_S)
    check_range("first", schedule.latest_start, 0, MAX_UNIX_TIME)
    check_range("every_s", schedule.every_s, 1, MAX_QUESTION_LIFETIME_S)
    check_range("windows", schedule.windows, 1, MAX_QUESTION_WINDOWS)
    check_range("round_one_s", schedule.round_one_s, 1, MAX_WINDOW_S)
    check_range("round_two_s", schedule.round_two_s, 0, MAX_WINDOW_S)
    check_range("expiry_s", schedule.expiry_s, 1, MAX_WINDOW_LIFETIME_S)


def _check_window(question: QuestionFields, index: int) -> None:
    try:
        check_window(window_fields(question, QuestionId(bytes(QuestionId.SIZE)), index))
    except QuestionError as error:
        raise QuestionError(f"window {index} of the question: {error}") from None


def _check_schedule(question: QuestionFields) -> None:
    schedule, step = question.schedule, question.time_precision_s
    require(schedule.every_s % step == 0, f"every_s is {schedule.every_s}, not a multiple of time_precision_s = {step}")
    rounds = schedule.round_one_s + schedule.round_two_s
    require(schedule.every_s >= rounds, f"every_s is {schedule.every_s}, allowed: at least the rounds' {rounds} s")
    envelope = question.upload_style is UploadStyle.ONE_ENVELOPE
    require(not (envelope and schedule.round_two_s), f"round_two_s is {schedule.round_two_s}, one envelope needs 0")
    _check_start(question)
    lifetime = (schedule.windows - 1) * schedule.every_s + rounds + schedule.expiry_s
    require(
        lifetime <= MAX_QUESTION_LIFETIME_S,
        f"the last window expires {lifetime} s after the first opens, allowed: at most {MAX_QUESTION_LIFETIME_S}",
    )


def _check_start(question: QuestionFields) -> None:
    schedule, step = question.schedule, question.time_precision_s
    if (signed := schedule.submission) is None:
        return
    for what, moment in (("earliest", signed.earliest), ("latest", signed.latest)):
        require(moment % step == 0, f"{what} start is {moment}, not a multiple of time_precision_s = {step}")
    # With a toss for each UTC day the promise would depend on the time of the start.
    require(question.coin is not Coin.DAY, "coin is day, allowed when counted from submission: window or questions")
    if (start := schedule.first) is not None:
        check_range("start of the question", start, signed.earliest, signed.latest)
        require(start % step == 0, f"start of the question is {start}, not a multiple of time_precision_s = {step}")


def _check_promise(question: QuestionFields) -> None:
    require(
        question.coin is Coin.WINDOW or question.mode is Mode.SAMPLING,
        f"coin is {question.coin.name.lower()}, allowed in {question.mode.name.lower()} mode: window",
    )
    delta = check_fraction("delta", question.delta)
    require(0 < delta <= _LARGEST_DELTA, f"delta is {delta}, allowed: above 0 and at most {_LARGEST_DELTA}")
    # Exact sums have no finite loss, so there is no promise over several windows.
    several = question.schedule.windows > 1
    require(
        not several or question.release.kind is not ReleaseKind.EXACT, "release is exact, allowed in one window only"
    )


def check_one_in(one_in: int, mode: Mode, every_s: int) -> None:
    """Refuse a cycle in which a device may not answer once; raises QuestionError."""
    check_range("one_in", one_in, 2, MAX_QUESTION_WINDOWS)
    require(mode is Mode.RESPONSE, f"one_in is {one_in} in {mode.name.lower()} mode, allowed: response")
    # Or a device would answer twice in a period, each time with all of epsilon.
    least = -(-ONE_ANSWER_PERIOD_S // every_s)
    require(one_in >= least, f"one_in is {one_in}, allowed: {least} or more, so that a device answers once in 30 days")


def _check_drill_down(question: QuestionFields, walk: DrillDown) -> None:
    domain, levels = question.domain, walk.levels
    check_range("number of levels", len(levels), 2, MAX_DRILL_DOWN_LEVELS)
    for bits in levels:
        check_range("level", bits, 1, domain.width if isinstance(domain, Prefixes) else PLACE_BITS)
    require(all(low < high for low, high in pairwise(levels)), f"levels are {levels}, allowed: ascending")
    if not isinstance(domain, Prefixes) or domain.bits != levels[0] or domain.values == 1:
        raise QuestionError(f"a drill-down begins with two or more prefixes of {levels[0]} bits as its domain")
    # A toss that outlives a step would count the same sampled devices again that the places were chosen by.
    coin = question.coin.name.lower()
    require(
        question.coin is Coin.WINDOW, f"coin is {coin}, allowed in a drill-down: window, a fresh toss for each step"
    )
    schedule, windows = question.schedule, question.schedule.windows
    least = schedule.round_one_s + schedule.round_two_s + question.time_precision_s
    # A record's time is the next point of the time grid after its rounds; the next step must open after it.
    require(schedule.every_s >= least, f"every_s is {schedule.every_s}, a drill-down needs at least {least} s")
    require(windows % len(levels) == 0, f"windows is {windows}, allowed: a multiple of the {len(levels)} levels")
    check_range("threshold", walk.threshold, 1, _LARGEST_THRESHOLD)
    children = 1 << max(high - low for low, high in pairwise(levels))
    require(children <= MAX_VALUES, f"a cell has {children} children, allowed: at most {MAX_VALUES}")
    check_range(f"most_survivors, each of {children} children,", walk.most_survivors, 1, MAX_VALUES // children)
    # A one-sided release has a threshold for each cell of the first step only, and estimates decide what survives.
    two_sided = question.release.kind is not ReleaseKind.ONE_SIDED
    require(two_sided, "release is one-sided, allowed in a drill-down: noise on both sides")
    _check_any_number_of_values(question)


def _check_any_number_of_values(question: QuestionFields) -> None:
    # The steps ask about different numbers of places: the law must have the same loss for each of them.
    mechanism = question.mechanism
    uniform = isinstance(mechanism, SamplingDie) and mechanism.face_probabilities is None
    require(mechanism is None or uniform, "a drill-down is direct or throws a uniform die")


@dataclass(frozen=True, kw_only=True)
class Question(QuestionFields):
    """A question that may be asked; its fields are those of `QuestionFields`.

    Raises:
        QuestionError: a field outside its range, named with its value and the range.
    """

    def __post_init__(self) -> None:
        check_question(self)

    def __hash__(self) -> int:
        """Return a hash that is computed once; where a start makes another question of it, equality tells."""
        return hash(self.question_id)

    @cached_property
    def canonical(self) -> bytes:
        """The canonical bytes that are hashed and signed (docs/wire.md, "Question")."""
        return encode_question_fields(self)

    @cached_property
    def question_id(self) -> QuestionId:
        """SHA-256 of the canonical bytes."""
        return QuestionId(hashlib.sha256(self.canonical).digest())

    @cached_property
    def first_window(self) -> WindowFields:
        """The fields of window 0, which all windows share except times and place (in a drill-down: first steps only).

        Before the start its times are those of the latest start.
        """
        return window_fields(self, self.question_id, 0)

    @cached_property
    def shared_bytes(self) -> tuple[bytes, bytes]:
        """The bytes before and after the times in the canonical bytes of every window, without its label."""
        return encode_question(self.first_window), encode_terms(self.first_window)

    def started(self, start: int) -> Self:
        """Return the question with windows, counted from the start (Unix seconds) that the leader fixed.

        It is the same question: canonical bytes, id and signatures stay the same.

        Raises:
            QuestionError: its times are fixed, it has another start already, or the start is outside the signed limits.
        """
        if self.schedule.submission is None:
            raise QuestionError(f"question {self.name!r} has fixed times, allowed: no start")
        if self.schedule.first not in (None, start):
            raise QuestionError(f"start of the question is {start}, it started at {self.schedule.first} already")
        return replace(self, schedule=replace(self.schedule, first=start))

    def at_latest(self) -> Self:
        """Return the question itself if it has a start, else with its latest start, for checks before the start."""
        return self if self.schedule.first is not None else replace(self, schedule=self.schedule.at_latest())

    @property
    def design(self) -> Design:
        """The design of every window; in a drill-down that of the first step of a walk: later steps have another V."""
        return self.first_window.design

    @cached_property
    def shape(self) -> ScheduleShape:
        """How many windows each unit of the coin, each UTC day and one answer has, of those that one device answers."""
        levels = 1 if self.drill_down is None else len(self.drill_down.levels)
        return self.schedule.shape(self.coin, levels, self.one_in)


def decode_question(data: bytes) -> Question:
    """Return the question whose canonical bytes these are.

    Raises:
        DecodeError: they are not the canonical bytes of a question, or the question breaks a rule.
    """
    try:
        read = decode_question_fields(data)
        question = Question(**{one.name: getattr(read, one.name) for one in fields(QuestionFields)})
    except (QuestionError, MechanismError) as error:
        raise DecodeError(f"question that may not be asked: {error}") from error
    if question.canonical != data:
        raise DecodeError("question is not in its canonical form")
    return question


@dataclass(frozen=True, kw_only=True)
class SignedQuestion:
    """A question with the Ed25519 signature of every listed aggregator, in its order; b"" where one is missing."""

    question: Question
    signatures: tuple[bytes, ...]

    @property
    def complete(self) -> bool:
        """Whether no signature is missing; they are not verified here."""
        return len(self.signatures) == len(self.question.aggregators) and all(self.signatures)


# Derivation of one window and of its verify key, with the same result at every party. Whether a window is asked decide
# orders and clocks (`orders`).

VERIFY_KEY_LABEL: Final = b"fleetcount v1 verify key"


def window_at(question: Question, index: int, survivors: tuple[int, ...] = ()) -> Window:
    """Return a window, 0 to `windows` - 1: the same bytes at every party.

    Run by every party shortly before the window opens. It shares all but the times with the other windows of the
    question object and costs a copy of the bytes. A later step of a drill-down needs the cells that survived the step
    before it (`surviving_cells`) and is made and checked anew. The two that were made last are the same objects again.

    Raises:
        UsageError: the question has no such window, or survivors that are impossible for the step before.
        QuestionError: the question has not started.
    """
    if type(index) is not int or not 0 <= index < question.schedule.windows:
        raise UsageError(f"window is {str(index)[:40]}, allowed: 0 to {question.schedule.windows - 1}")
    latest: tuple[tuple[int, tuple[int, ...], Window], ...] = question.__dict__.get("_latest", ())
    for place, cells, window in latest:
        if (place, cells) == (index, survivors):
            return window
    window = _made(question, index, survivors)
    question.__dict__["_latest"] = ((index, survivors, window), *latest[:1])
    return window


def _made(question: Question, index: int, survivors: tuple[int, ...]) -> Window:
    times = window_times(question.schedule, index)
    walk = question.drill_down
    if walk is not None and walk.step_of(index):
        codes = question.domain.codes if isinstance(question.domain, Prefixes) else None
        domain = candidates(survivors, walk, walk.step_of(index), codes)
        of = window_fields(question, question.question_id, index, domain)
        return Window(**{one.name: getattr(of, one.name) for one in fields(WindowFields)})
    if survivors:
        raise UsageError(f"window {index} follows no step of a drill-down, allowed: no survivors")
    ref = window_ref(question, question.question_id, index)
    first = question.first_window
    # Not checked again: `check_question` has applied the rules of a window to the first and the last window.
    window = object.__new__(Window)
    shared = {one.name: getattr(first, one.name) for one in fields(first)}
    window.__dict__.update(shared, **times, question=ref, design=first.design)
    before, behind = question.shared_bytes
    window.__dict__["canonical"] = window_label(ref) + before + encode_times(window) + behind
    return window


def window_verify_key(seed: bytes, window_id: WindowId) -> bytes:
    """Return the 32-byte verify key of a window: HKDF-Expand (RFC 5869, section 2.3) of the seed, its first block.

    Run by aggregators. The seed is 32 uniform bytes, so the extract step of HKDF is not needed.

    Raises:
        UsageError: a seed of another size (the message withholds it).
    """
    if len(seed) != VERIFY_KEY_BYTES:
        raise UsageError(f"the seed of verify keys has {len(seed)} bytes, allowed: {VERIFY_KEY_BYTES}")
    return hmac.digest(seed, VERIFY_KEY_LABEL + window_id + b"\x01", "sha256")


def check_verify_seed(question: Question, seed: bytes) -> None:
    """Refuse a seed of verify keys whose digest is not in the signed question.

    Raises:
        QuestionError: another size or another digest (the message withholds it).
    """
    if len(seed) != VERIFY_KEY_BYTES or hashlib.sha256(seed).digest() != question.verify_seed_digest:
        raise QuestionError("the seed of verify keys is not the one the question commits to")


def sign_question(question: Question, key: "Ed25519PrivateKey") -> bytes:
    """Return an aggregator's Ed25519 signature (RFC 8032, pure) over the canonical bytes, 64 bytes.

    The bytes begin with a label, so that no signature of another kind of message verifies for a question.
    """
    return key.sign(question.canonical)


def verify_signed_question(signed: SignedQuestion, trusted: "Mapping[AggregatorId, TrustedAggregator]") -> None:
    """Accept a question only with valid signatures of all its aggregators, each trusted with the same key and operator.

    Raises:
        QuestionError: an aggregator that is not trusted or is described otherwise, or fewer than two distinct
            operators.
        SignatureError: a signature that is missing or does not verify.
    """
    from fleetcount_protocol.window.signing import (  # OpenSSL: a device starts without it.
        check_trusted,
        verify_all_signatures,
    )

    question = signed.question
    check_trusted(question.aggregators, trusted, question.schedule.latest_start)
    verify_all_signatures(question.aggregators, signed.signatures, question.canonical, f"question {question.name!r}")


SIGNED_QUESTION_LABEL: Final = b"FCSQUE01"
MAX_SIGNED_QUESTION_BYTES: Final = MAX_QUESTION_BYTES + 512


def encode_signed_question(signed: SignedQuestion) -> bytes:
    """Return the `.question` file of a question with the signatures it has so far.

    Raises:
        UsageError: a signature of other than 0 or 64 bytes, or not as many signatures as aggregators.
    """
    fault = fault_of_signatures(signed.signatures, len(signed.question.aggregators))
    if fault:
        raise UsageError(fault)
    return SIGNED_QUESTION_LABEL + sized(signed.question.canonical, 4) + encode_signatures(signed.signatures)


def decode_signed_question(data: bytes) -> SignedQuestion:
    """Return the question and the signatures of a `.question` file; no signature is verified here.

    Raises:
        DecodeError: the bytes are not such a file.
    """
    reader = Reader(data, "signed question", MAX_SIGNED_QUESTION_BYTES)
    reader.expect(SIGNED_QUESTION_LABEL)
    question = decode_question(reader.sized(4, len(QUESTION_LABEL), MAX_QUESTION_BYTES))
    signatures = read_signatures(reader)
    reader.finish()
    return signed_question(question, signatures)


def signed_question(question: Question, signatures: tuple[bytes, ...]) -> SignedQuestion:
    """Return the question with its signatures, after a check of their number and sizes.

    Raises:
        DecodeError: a signature of other than 0 or 64 bytes, or not as many signatures as aggregators.
    """
    fault = fault_of_signatures(signatures, len(question.aggregators))
    if fault:
        raise DecodeError(fault)
    return SignedQuestion(question=question, signatures=signatures)

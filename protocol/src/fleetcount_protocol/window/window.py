"""The window: one window of a counting question, immutable, the same bytes for every party.

The constructor of `Window` checks every rule, so every `Window` may be asked. Other modules make and check reports.
"""

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Final, cast

from fleetcount_mechanisms.answers import AnswerForm, channel_of, kind_of
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.levels import drawn_at_once, total_label
from fleetcount_mechanisms.noise import NoiseLaw
from fleetcount_mechanisms.sampling import SamplingDie

from fleetcount_protocol.errors import DecodeError, QuestionError, UsageError
from fleetcount_protocol.ids import WindowId, split_endpoint
from fleetcount_protocol.layout import check_text
from fleetcount_protocol.limits import (
    MAX_AGGREGATORS,
    MAX_EPSILON,
    MAX_QUESTION_WINDOWS,
    MAX_REPORTS_PER_WINDOW,
    MAX_TERM,
    MAX_TEXT_BYTES,
    MAX_UNIX_TIME,
    MAX_WINDOW_LIFETIME_S,
    MAX_WINDOW_S,
    MIN_AGGREGATORS,
    MIN_BATCH_SIZE,
    MIN_OPERATORS,
)
from fleetcount_protocol.window.codec import decode_fields, encode_fields
from fleetcount_protocol.window.domain import MAX_VALUES, Bins, Categories, Numbers, SingleDomain, SquareGrid, most_of
from fleetcount_protocol.window.fields import (
    MECHANISM_NUMBERS,
    MODE_FORMS,
    Aggregator,
    CoarserLevel,
    HpkeKey,
    LevelKind,
    Mode,
    Release,
    ReleaseKind,
    UploadStyle,
    WindowFields,
    level_words,
    opened_levels,
)
from fleetcount_protocol.window.keys import check_hpke_public_key, check_signing_public_key
from fleetcount_protocol.window.signal import check_signal

if TYPE_CHECKING:
    from fleetcount_protocol.vdaf.prio3 import Prio3


# The rules that every window keeps: ranges of its fields, times, parties and keys (docs/wire.md, "Rules of a window").
#
# Run by every party. It must not read bytes (`codec`) or decide for a device's owner (the client's `policy`).

_SMALLEST_EPSILON: Final = Fraction(1, 10**6)
_SMALLEST_WEIGHT: Final = Fraction(1, 10**6)
"""The smallest weight of the truth in an answer. Estimates are divided by it: with a smaller one the noise alone leaves
every allowed range, and no aggregator could compute the record."""
_HALF: Final = Fraction(1, 2)
_LARGEST_THRESHOLD: Final = 2**32 - 1
_LARGEST_PRECISION_S: Final = 86_400
_DEPLOYMENT: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,31}", re.ASCII)


def check_window(window: WindowFields) -> None:
    """Refuse a window that breaks a rule (docs/wire.md, "Rules of a window").

    Raises:
        QuestionError: with the field, its value and the allowed range.
    """
    _check_names(window)
    _check_domain(window)
    _check_mechanism(window)
    _check_times(window)
    _check_release(window)
    _check_question(window)
    _check_aggregators(window)
    _check_design(window)


def operator_key(operator: str) -> str:
    """Return an operator's name as names are compared: Unicode form NFKC, case and white space folded."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", operator).casefold())
    return " ".join(folded.split())


def require(holds: bool, message: str) -> None:
    """Raise an error unless a rule holds.

    Raises:
        QuestionError: with `message`, if `holds` is False.
    """
    if not holds:
        raise QuestionError(message)


def check_range(what: str, value: object, smallest: int, largest: int) -> int:
    """Return `value` if it is an int in smallest..largest.

    Raises:
        QuestionError: it is not an int, or outside the range.
    """
    if type(value) is not int or not smallest <= value <= largest:
        raise QuestionError(f"{what} is {str(value)[:40]}, allowed: a whole number from {smallest} to {largest}")
    return value


def _check_named(what: str, text: str, smallest: int = 1, largest: int = MAX_TEXT_BYTES) -> None:
    try:
        check_text(text, smallest, largest)
    except ValueError as error:
        raise QuestionError(f"{what}: {error}") from None


def check_fraction(what: str, value: object) -> Fraction:
    """Return `value` if it is a Fraction that the canonical bytes can encode.

    Raises:
        QuestionError: another type, or a term beyond 2**63 - 1.
    """
    # A float or an int that equals the fraction is another type: encoding it would give other bytes or fail.
    if not isinstance(value, Fraction):
        raise QuestionError(f"{what} is {str(value)[:40]}, allowed: an exact Fraction")
    if abs(value.numerator) > MAX_TERM or value.denominator > MAX_TERM:
        raise QuestionError(f"{what} has a term beyond 2**63 - 1")
    return value


def _check_names(window: WindowFields) -> None:
    _check_named("name", window.name)
    check_signal(window.signal)
    if not _DEPLOYMENT.fullmatch(window.deployment):
        raise QuestionError(f"deployment is {window.deployment[:40]!a}, allowed: 1 to 32 of a-z, 0-9, '-'")
    require(len(window.verify_key_digest) == 32, "verify_key_digest must have 32 bytes")


def _check_domain(window: WindowFields) -> None:
    check_range("number of values", window.values, 1, MAX_VALUES)
    for part in window.parts:
        check_signal(part.signal)
        _check_single(part.domain)
    first = window.parts[0].signal
    require(window.signal == first, f"signal is {window.signal[:40]!a}, allowed: that of the first part, {first!a}")


def _check_single(domain: SingleDomain) -> None:
    if isinstance(domain, Bins):
        _check_named("unit", domain.unit, smallest=0)
        for edge in domain.edges:
            check_fraction("bin edge", edge)
    elif isinstance(domain, Numbers):
        _check_named("unit", domain.unit, smallest=0)
        for what in ("low", "high"):
            check_fraction(what, getattr(domain, what))
    elif isinstance(domain, Categories):
        for name in domain.names:
            _check_named("category", name)
    elif isinstance(domain, SquareGrid):
        for what in ("x0", "y0", "size"):
            check_fraction(f"grid {what}", getattr(domain, what))


def _check_mechanism(window: WindowFields) -> None:
    mechanism, mode = window.mechanism, window.mode
    if mode is Mode.DIRECT:
        require(mechanism is None, f"a direct window has no mechanism, not {type(mechanism).__name__}")
        return
    most = most_of(window.domain)
    require(most == 1, f"a device has up to {most} categories in {mode.name.lower()} mode, allowed: in direct mode")
    if mechanism is None or type(mechanism) not in MECHANISM_NUMBERS or kind_of(mechanism).form not in MODE_FORMS[mode]:
        raise QuestionError(f"{mode.name.lower()} mode does not take the mechanism {type(mechanism).__name__}")
    if mechanism.values != window.values:
        raise QuestionError(f"mechanism answers {mechanism.values} values, the domain has {window.values}")
    kind = kind_of(mechanism)
    for parameter in kind.parameters:
        check_fraction(parameter.replace("sampling_rate", "sampling rate"), getattr(mechanism, parameter))
    hit, miss = channel_of(mechanism)
    if kind.form is AnswerForm.TWO_ROUNDS:
        _check_die(cast("SamplingDie", mechanism))
        return
    require(
        hit - miss >= _SMALLEST_WEIGHT, f"an answer is the truth with weight {hit - miss}, allowed: at least 1/1000000"
    )


def _check_die(die: SamplingDie) -> None:
    # Up to 1/2: there a coin of a day or of the question needs the least noise.
    rate = die.sampling_rate
    fits = _SMALLEST_WEIGHT <= rate <= _HALF
    require(fits, f"sampling rate is {rate}, allowed: from {_SMALLEST_WEIGHT} to {_HALF}")
    for face in die.face_probabilities or ():
        check_fraction("face probability", face)


def _check_times(window: WindowFields) -> None:
    step = check_range("time_precision_s", window.time_precision_s, 1, _LARGEST_PRECISION_S)
    names = ("round_one_opens", "round_one_closes", "round_two_closes", "expiry")
    times = [check_range(name, getattr(window, name), 0, MAX_UNIX_TIME) for name in names]
    for name, time in zip(names, times, strict=True):
        require(time % step == 0, f"{name} is {time}, not a multiple of time_precision_s = {step}")
    opens, one_closes, two_closes, expiry = times
    require(opens < one_closes, f"round_one_closes is {one_closes}, allowed: after round_one_opens = {opens}")
    require(two_closes < expiry, f"expiry is {expiry}, allowed: after round_two_closes = {two_closes}")
    _check_last_close(window)
    require(
        two_closes - opens <= MAX_WINDOW_S, f"the rounds take {two_closes - opens} s, allowed: at most {MAX_WINDOW_S}"
    )
    require(
        expiry - opens <= MAX_WINDOW_LIFETIME_S,
        f"expiry is {expiry - opens} s after the opening, allowed: at most {MAX_WINDOW_LIFETIME_S}",
    )


def _check_last_close(window: WindowFields) -> None:
    one_closes, two_closes = window.round_one_closes, window.round_two_closes
    envelope = window.upload_style is UploadStyle.ONE_ENVELOPE
    if window.mode is not Mode.SAMPLING:
        require(not envelope, "one_envelope is an upload style of sampling mode only")
        require(two_closes == one_closes, f"round_two_closes is {two_closes}, one round closes at {one_closes}")
    elif envelope:
        require(two_closes >= one_closes, f"round_two_closes is {two_closes}, allowed: from {one_closes} on")
    else:
        require(two_closes > one_closes, f"round_two_closes is {two_closes}, allowed: after {one_closes}")


def check_release_kind(kind: ReleaseKind, mode: Mode) -> None:
    """Check that a release of this kind goes with answers of this mode.

    Raises:
        QuestionError: it does not; names the kinds that do.
    """
    # Exact sums over the outputs 0..V would reveal the exact number of participants; differences of rounds do not.
    own = {Mode.SAMPLING: (ReleaseKind.EXACT,), Mode.DIRECT: (ReleaseKind.ONE_SIDED,)}.get(mode, ())
    allowed = (ReleaseKind.GEOMETRIC, ReleaseKind.GAUSSIAN, *own)
    names = " or ".join(one.label for one in allowed)
    require(kind in allowed, f"release {kind.label} is not for {mode.name.lower()} mode, allowed there: {names}")


def _check_release(window: WindowFields) -> None:
    check_range("min_batch_size", window.min_batch_size, MIN_BATCH_SIZE, MAX_REPORTS_PER_WINDOW)
    release = window.release
    level = check_fraction("level", release.level)
    require(0 < level < 1, f"level is {level}, allowed: above 0 and below 1")
    check_release_kind(release.kind, window.mode)
    if release.kind is ReleaseKind.GAUSSIAN:
        check_fraction("noise_variance", release.noise_variance)  # The law checks the range (`_check_design`).
    else:
        require(release.noise_variance is None, f"release {release.kind.label} has no noise_variance")
    if release.kind in (ReleaseKind.EXACT, ReleaseKind.GAUSSIAN):
        article = "an exact" if release.kind is ReleaseKind.EXACT else "a gaussian"
        require(release.noise_epsilon is None, f"{article} release has no noise_epsilon")
    else:
        epsilon = check_fraction("noise_epsilon", release.noise_epsilon)
        fits = _SMALLEST_EPSILON <= epsilon <= MAX_EPSILON
        require(fits, f"noise_epsilon is {epsilon}, allowed: {_SMALLEST_EPSILON} to {MAX_EPSILON}")
    _check_direction(release)
    _check_levels(window)


def _check_direction(release: Release) -> None:
    one_sided = release.kind is ReleaseKind.ONE_SIDED
    fits = release.direction in (("up", "down") if one_sided else ("up",))
    allowed = "'up' or 'down'" if one_sided else f"none of a {release.kind.label} release"
    require(fits, f"direction is {str(release.direction)[:40]!a}, allowed: {allowed}")


def _check_levels(window: WindowFields) -> None:
    release, before = window.release, LevelKind.ZOOM
    for level in release.coarser:
        require(
            type(level.number) is int,
            f"a level of side {str(level.number)[:40]!a} is asked, allowed: a whole number",
        )
        what = level_words(window.domain, level)
        require(release.kind is not ReleaseKind.EXACT, f"an exact release has {what}, allowed: the cells alone")
        _check_place(level, before, what)
        before = level.kind
        noise = check_fraction(f"noise of {what}", level.noise)
        fits = release.kind is ReleaseKind.GAUSSIAN or _SMALLEST_EPSILON <= noise <= MAX_EPSILON
        require(fits, f"noise of {what} is {noise}, allowed: {_SMALLEST_EPSILON} to {MAX_EPSILON}")
    label = total_label(most_of(window.domain))
    named = isinstance(window.domain, Categories) and label in window.domain.names
    require(not (release.total and named), f"a total is asked beside a category {label!r}, allowed: other names")
    levels = opened_levels(window.domain, release)
    dimensions = tuple(range(1, len(levels.margins) + 1))
    require(release.margins == dimensions, f"margins are {release.margins}, allowed: {dimensions}, each once, in order")
    _check_thresholds(release, levels.opened)


def _check_place(level: CoarserLevel, before: LevelKind, what: str) -> None:
    require(before is not LevelKind.TOTAL, "the total stands before other levels, allowed: as the last one")
    single = level.kind is LevelKind.WEIGHTED
    fits = level.kind.value > before.value or (level.kind is before and not single)
    require(fits, f"{what} is asked behind {before.name.lower()}, allowed: zooms, margins, the weighted sum, the total")
    alone = level.kind in (LevelKind.WEIGHTED, LevelKind.TOTAL)
    require(not (alone and level.number), f"{what} has the number {level.number}, allowed: 0")


def _check_thresholds(release: Release, cells: int) -> None:
    count = cells if release.kind is ReleaseKind.ONE_SIDED else 0
    if len(release.thresholds) != count:
        raise QuestionError(f"release has {len(release.thresholds)} thresholds, not {count}")
    for threshold in release.thresholds:
        check_range("threshold", threshold, 0, _LARGEST_THRESHOLD)


def _check_design(window: WindowFields) -> None:
    try:
        window.design.kind  # noqa: B018 - making the design checks that its parts fit
    except MechanismError as error:
        raise QuestionError(str(error)) from None


def _check_question(window: WindowFields) -> None:
    require(len(window.question.question_id) == 32, "question_id must have 32 bytes")
    check_range("index of the window", window.question.index, 0, MAX_QUESTION_WINDOWS - 1)
    require(
        not window.question.noised_participants or window.mode is not Mode.RESPONSE,
        "participants is noised, allowed in response mode: hidden; the opened numbers of all outputs tell it already",
    )


def _check_aggregators(window: WindowFields) -> None:
    aggregators = window.aggregators
    check_range("number of aggregators", len(aggregators), MIN_AGGREGATORS, MAX_AGGREGATORS)
    for aggregator in aggregators:
        _check_aggregator(aggregator)
    _check_distinct("aggregator id", (str(one.aggregator_id) for one in aggregators))
    _check_distinct("signing key", (one.signing_public_key.hex() for one in aggregators))
    # All aggregators may share a broker; a gRPC endpoint belongs to one aggregator.
    _check_distinct("gRPC endpoint", (one.grpc_endpoint.lower() for one in aggregators if one.grpc_endpoint))
    operators = {operator_key(one.operator) for one in aggregators}
    if len(operators) < MIN_OPERATORS:
        raise QuestionError(
            f"the aggregators have {len(operators)} operator, allowed: at least {MIN_OPERATORS} distinct"
        )


def _check_distinct(what: str, values: Iterable[str]) -> None:
    seen: set[str] = set()
    for value in values:
        require(value not in seen, f"{what} {value[:40]} is given twice; every aggregator needs its own")
        seen.add(value)


def _check_aggregator(aggregator: Aggregator) -> None:
    name = aggregator.aggregator_id
    _check_named(f"operator of {name}", aggregator.operator)
    endpoints = [endpoint for endpoint in (aggregator.grpc_endpoint, aggregator.mqtt_broker) if endpoint]
    require(bool(endpoints), f"aggregator {name} has neither a gRPC endpoint nor an MQTT broker")
    for endpoint in endpoints:
        _check_endpoint(name, endpoint)
    _check_key(name, check_signing_public_key, aggregator.signing_public_key)
    keys = aggregator.hpke_keys
    require(not keys, f"aggregator {name} names {len(keys)} sealing keys, a question takes them from its key list")


def check_sealing_keys(name: str, keys: Sequence[HpkeKey]) -> None:
    """Refuse sealing keys of an aggregator with an id twice or out of range, or a key of small order.

    Raises:
        QuestionError: with the fault.
    """
    ids = [check_range(f"key id of {name}", key.key_id, 0, 255) for key in keys]
    require(len(set(ids)) == len(ids), f"aggregator {name} gives a key id twice: {ids}")
    for key in keys:
        _check_key(name, check_hpke_public_key, key.public_key)


def _check_key(name: str, check: Callable[[bytes], None], key: bytes) -> None:
    try:
        check(key)
    except ValueError as error:
        raise QuestionError(f"aggregator {name}: {error}") from None


def _check_endpoint(name: str, endpoint: str) -> None:
    try:
        split_endpoint(endpoint)
    except UsageError as error:
        raise QuestionError(f"endpoint of {name}: {error}") from None


@dataclass(frozen=True, kw_only=True)
class Window(WindowFields):
    """A window that may be asked; its fields are those of `WindowFields`.

    Raises:
        QuestionError: a field outside its range, named with its value and the range.
    """

    def __post_init__(self) -> None:
        check_window(self)

    @cached_property
    def canonical(self) -> bytes:
        """The canonical bytes that are hashed (docs/wire.md, "Window")."""
        return encode_fields(self)

    @cached_property
    def window_id(self) -> WindowId:
        """SHA-256 of the canonical bytes."""
        return WindowId(hashlib.sha256(self.canonical).digest())


def decode_window(data: bytes) -> Window:
    """Return the window whose canonical bytes these are.

    Raises:
        DecodeError: they are not the canonical bytes of a window, or the window breaks a rule.
    """
    try:
        read = decode_fields(data)
        window = Window(**{one.name: getattr(read, one.name) for one in fields(WindowFields)})
    except (QuestionError, MechanismError) as error:
        raise DecodeError(f"window that may not be asked: {error}") from error
    if window.canonical != data:
        raise DecodeError("window is not in its canonical form")
    return window


# What the window decides about its reports: the proof's context and circuit, and which sums are opened. The circuits
# are those of `vdaf`, which is loaded only where a report is made or checked.

CONTEXT_LABEL: Final = b"FCT1"
"""Four bytes: with the window id the VDAF context has 36, which aligns the words of a joint-randomness hash to 8."""


def context_of(window: Window) -> bytes:
    """Return the VDAF context of the window's reports: "FCT1" and the window id, 36 bytes."""
    return CONTEXT_LABEL + window.window_id


def opened_outputs(window: Window) -> slice:
    """Return the slice of a verified output share that is added up (`Design.outputs`).

    In direct mode the circuit has one output more than is opened, output 0; of sets it is the last one, whether there
    is any value, which is the total where that is opened. Aggregators noise and open these sums and, after them, those
    of every coarser level (`Design.opened_sums`).
    """
    levels = window.design.levels
    if levels.most > 1:
        return slice(0, window.values + levels.total)
    return slice(1, None) if window.design.form is AnswerForm.TRUTH else slice(None)


def opened_count(window: Window) -> int:
    """Return how many numbers every aggregator noises, commits to and opens: the outputs, then the participants.

    The number of participants is opened if the question says so: the leader's element is the number of accepted reports
    plus its noise, that of every helper its noise alone (docs/wire.md, "Opening").
    """
    return window.design.output_count + window.question.noised_participants


def opened_noise(window: Window) -> tuple[tuple[NoiseLaw, int], ...]:
    """Return what every aggregator draws, as (law, how many numbers in a row have it), in the order of what is opened.

    The number of participants, where it is opened, has the noise of a cell.
    """
    participants = ((window.design.noise, 1),) if window.question.noised_participants else ()
    return drawn_at_once((*window.design.opened_noise, *participants))


def opened_ranges(window: Window) -> tuple[tuple[NoiseLaw, int, tuple[int, int]], ...]:
    """Return (law, how many numbers in a row, the least and the most that a report adds to each), as they are opened.

    A report adds 0 or 1 to a number, to the weighted sum -(V - 1) to V - 1.
    """
    design, furthest = window.design, window.values - 1
    found = [(law, size, (0, 1)) for law, size in zip(design.laws, design.levels.sizes, strict=True)]
    found[0] = (design.noise, design.values + design.baseline_opened, (0, 1))
    place = design.levels.weighted_place
    if place is not None:
        found[place] = (design.laws[place], 1, (-furthest, furthest))
    participants = [(design.noise, 1, (0, 1))] * window.question.noised_participants
    return (*found, *participants)


def prio3_for(window: Window) -> "Prio3":
    """Return the Prio3 instance of the window's reports."""
    return prio3_of(window.design)


def prio3_of(design: Design) -> "Prio3":
    """Return the Prio3 instance of a design's reports: its circuit, with one share for each aggregator."""
    from fleetcount_protocol.vdaf.prio3 import prio3_bits, prio3_multihot, prio3_one_hot, prio3_two_round

    if design.levels.most > 1:
        return prio3_multihot(design.values, design.levels.most, design.aggregators)
    make = {AnswerForm.TWO_ROUNDS: prio3_two_round, AnswerForm.BITS: prio3_bits}.get(design.form, prio3_one_hot)
    return make(design.values + 1, design.aggregators)


def report_bytes(design: Design) -> int:
    """Return the bytes of shares that a device sends for one answer, to all aggregators and in all rounds.

    Without ids, tags and sessions, which are a hundred bytes a message.
    """
    prio3 = prio3_of(design)
    return sum(prio3.input_share_size(one) + prio3.public_share_size for one in range(design.aggregators))

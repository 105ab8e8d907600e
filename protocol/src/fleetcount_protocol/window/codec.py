"""The canonical bytes of a window's fields (docs/wire.md, "Window").

It must not apply the rules of a window: `window` decides whether the fields may be asked and the bytes are canonical.
"""

from typing import Any, Final

from fleetcount_mechanisms.answers import AnswerLaw, kind_of, kind_of_law
from fleetcount_mechanisms.noise import Side
from fleetcount_mechanisms.responses import AsymmetricVector, Flips
from fleetcount_mechanisms.sampling import SamplingDie

from fleetcount_protocol.errors import DecodeError, QuestionError
from fleetcount_protocol.ids import AggregatorId, Digest, QuestionId
from fleetcount_protocol.layout import Reader, fraction_bytes, text_bytes, uint
from fleetcount_protocol.limits import (
    MAX_AGGREGATORS,
    MAX_DIMENSIONS,
    MAX_ENDPOINT_BYTES,
    MAX_TEXT_BYTES,
    MAX_WINDOW_BYTES,
    MAX_ZOOMS,
    MIN_AGGREGATORS,
)
from fleetcount_protocol.window.codes import CODE_ALPHABET_SIZE, MAX_CODE_LENGTH, CodeForm, Codes
from fleetcount_protocol.window.domain import (
    CROSSED,
    MAX_OPENED,
    MAX_VALUES,
    PLACE_BITS,
    Bins,
    Categories,
    Cross,
    H3Cells,
    Numbers,
    Outside,
    Part,
    Prefixes,
    SingleDomain,
    SquareGrid,
    ValueDomain,
)
from fleetcount_protocol.window.fields import (
    MECHANISM_NUMBERS,
    Aggregator,
    CoarserLevel,
    HpkeKey,
    LevelKind,
    Mode,
    QuestionRef,
    Release,
    ReleaseKind,
    UploadStyle,
    WindowFields,
)
from fleetcount_protocol.window.frame import MAX_OFFSET_BYTES, Frame
from fleetcount_protocol.window.keys import ED25519_KEY_BYTES, HYBRID_KEY_BYTES, X25519_KEY_BYTES

WINDOW_LABEL: Final = b"FCWIND01"
"""First bytes of a window."""
_CROSSED_KINDS: Final = (1, 2, 3, 4, 6)
"""The kinds of domains that parts of a cross have: bins, categories, grids and H3 cells."""
_KEM_SIZES: Final = {0x0020: X25519_KEY_BYTES, 0x647A: HYBRID_KEY_BYTES}
"""KEM identifiers of the HPKE registry (RFC 9180, section 7.1, and its IANA page) and their public key sizes."""


def encode_fields(window: WindowFields) -> bytes:
    """Return the canonical bytes that are hashed into the window id.

    Raises:
        QuestionError: they are more than `MAX_WINDOW_BYTES`.
    """
    encoded = window_label(window.question) + encode_question(window) + encode_times(window) + encode_terms(window)
    if len(encoded) > MAX_WINDOW_BYTES:
        raise QuestionError(f"window has {len(encoded)} bytes, allowed: at most {MAX_WINDOW_BYTES}")
    return encoded


def window_label(ref: QuestionRef) -> bytes:
    """Return the first bytes of a window: label, question id, index, and whether participants are noised."""
    return WINDOW_LABEL + ref.question_id + uint(ref.index, 4) + uint(1 + ref.noised_participants, 1)


def encode_question(window: WindowFields) -> bytes:
    """Return the bytes before a window's times, which are the same in the question and in all its windows."""
    return b"".join(
        (
            text_bytes(window.name),
            text_bytes(window.deployment),
            text_bytes(window.signal),
            _encode_domain(window.domain),
            uint(window.mode.value, 1),
            _encode_mechanism(window.mechanism),
        )
    )


def encode_times(window: WindowFields) -> bytes:
    """Return a window's four times."""
    times = (window.round_one_opens, window.round_one_closes, window.round_two_closes, window.expiry)
    return b"".join(uint(time, 8) for time in times)


def encode_terms(window: WindowFields) -> bytes:
    """Return the bytes after a window's times, which are the same in the question and in all its windows."""
    parts = (
        uint(window.time_precision_s, 4),
        uint(window.min_batch_size, 4),
        _encode_release(window.release),
        uint(window.upload_style.value, 1),
        window.verify_key_digest,
        uint(len(window.aggregators), 1),
        *(_encode_aggregator(aggregator) for aggregator in window.aggregators),
    )
    return b"".join(parts)


def decode_fields(data: bytes) -> WindowFields:
    """Return the fields that these bytes encode; the rules of a window are not checked.

    Raises:
        DecodeError: the bytes are not the fields of a window.
        QuestionError, MechanismError: a domain or a mechanism with a value outside its range.
    """
    reader = Reader(data, "window", MAX_WINDOW_BYTES)
    place = _read_label(reader)
    question = read_question(reader)
    opens, one_closes, two_closes, expiry = (reader.uint(8) for _ in range(4))
    terms = read_terms(reader)
    reader.finish()
    return WindowFields(
        **question,
        round_one_opens=opens,
        round_one_closes=one_closes,
        round_two_closes=two_closes,
        expiry=expiry,
        **terms,
        question=place,
    )


def _read_label(reader: Reader) -> QuestionRef:
    reader.expect(WINDOW_LABEL)
    question_id, index = QuestionId(reader.take(QuestionId.SIZE)), reader.uint(4)
    return QuestionRef(question_id=question_id, index=index, noised_participants=reader.count(1, 1, 2) == 2)


def read_question(reader: Reader) -> dict[str, Any]:
    """Return the fields before a window's times, by name (`encode_question`).

    Raises:
        DecodeError: the bytes are not those fields.
        QuestionError, MechanismError: a domain or a mechanism with a value outside its range.
    """
    name, deployment, signal = (reader.text(1, MAX_TEXT_BYTES) for _ in range(3))
    domain = _read_domain(reader)
    return {
        "name": name,
        "deployment": deployment,
        "signal": signal,
        "domain": domain,
        "mode": Mode(reader.count(1, 1, len(Mode))),
        "mechanism": _read_mechanism(reader, domain.values),
    }


def read_terms(reader: Reader) -> dict[str, Any]:
    """Return the fields after a window's times, by name (`encode_terms`).

    Raises:
        DecodeError: the bytes are not those fields.
    """
    return {
        "time_precision_s": reader.uint(4),
        "min_batch_size": reader.uint(4),
        "release": _read_release(reader),
        "upload_style": UploadStyle(reader.count(1, 1, len(UploadStyle))),
        "verify_key_digest": Digest(reader.take(Digest.SIZE)),
        "aggregators": tuple(
            _read_aggregator(reader) for _ in range(reader.count(1, MIN_AGGREGATORS, MAX_AGGREGATORS))
        ),
    }


# Domains.


def _encode_domain(domain: ValueDomain) -> bytes:
    if isinstance(domain, Cross):
        parts = b"".join(text_bytes(part.signal) + _encode_single(part.domain) for part in domain.parts)
        return uint(9, 1) + uint(len(domain.parts), 1) + parts
    return _encode_single(domain)


def _encode_single(domain: SingleDomain) -> bytes:
    if isinstance(domain, Bins):
        edges = b"".join(fraction_bytes(edge) for edge in domain.edges)
        return uint(1, 1) + uint(len(domain.edges), 2) + edges + uint(domain.open_above, 1) + text_bytes(domain.unit)
    if isinstance(domain, Numbers):
        ends = fraction_bytes(domain.low) + fraction_bytes(domain.high)
        return uint(7, 1) + ends + uint(domain.values, 2) + uint(domain.outside.value, 1) + text_bytes(domain.unit)
    if isinstance(domain, Categories):
        # How many a device has at once stands before the names, which have another number then.
        start = uint(2, 1) if domain.most == 1 else uint(10, 1) + uint(domain.most, 2)
        return start + uint(domain.values, 2) + b"".join(text_bytes(name) for name in domain.names)
    if isinstance(domain, SquareGrid):
        lengths = b"".join(fraction_bytes(length) for length in (domain.x0, domain.y0, domain.size))
        # A frame stands behind the grid, which has another number then.
        kind, frame = (3, b"") if domain.frame is None else (6, _encode_frame(domain.frame))
        return uint(kind, 1) + lengths + uint(domain.columns, 2) + uint(domain.rows, 2) + frame
    if isinstance(domain, Prefixes):
        # Codes stand before their prefixes, which have another number then.
        start = uint(5, 1) if domain.codes is None else uint(8, 1) + _encode_codes(domain.codes)
        return start + uint(domain.bits, 1) + uint(domain.values, 2) + b"".join(uint(cell, 4) for cell in domain.cells)
    cells = b"".join(uint(cell, 8) for cell in domain.cells)
    return uint(4, 1) + uint(domain.resolution, 1) + uint(domain.values, 2) + cells


def _encode_codes(codes: Codes) -> bytes:
    text = text_bytes(codes.alphabet) + uint(codes.length, 1) if codes.form is CodeForm.TEXT else b""
    return uint(codes.form.value, 1) + text


def _read_codes(reader: Reader) -> Codes:
    form = CodeForm(reader.count(1, 1, len(CodeForm)))
    if form is not CodeForm.TEXT:
        return Codes(form=form)
    least, most = CODE_ALPHABET_SIZE
    return Codes(form=form, alphabet=reader.text(least, most), length=reader.count(1, 1, MAX_CODE_LENGTH))


def _encode_frame(frame: Frame) -> bytes:
    return uint(frame.epsg, 2) + text_bytes(frame.offset_x) + text_bytes(frame.offset_y)


def _read_frame(reader: Reader) -> Frame:
    epsg = reader.uint(2)
    offset_x, offset_y = (reader.text(1, MAX_OFFSET_BYTES) for _ in range(2))
    return Frame(epsg=epsg, offset_x=offset_x, offset_y=offset_y)


def _read_domain(reader: Reader) -> ValueDomain:
    kind = reader.count(1, 1, 10)
    if kind != 9:
        return _read_single(reader, kind)
    parts: list[Part] = []
    for _ in range(reader.count(1, *CROSSED)):
        signal = reader.text(1, MAX_TEXT_BYTES)
        kind = reader.uint(1)
        if kind not in _CROSSED_KINDS:
            raise DecodeError(f"window crosses a domain of kind {kind}, allowed: {', '.join(map(str, _CROSSED_KINDS))}")
        parts.append(Part(signal=signal, domain=_read_single(reader, kind)))
    return Cross(parts=tuple(parts))


def _read_single(reader: Reader, kind: int) -> SingleDomain:
    if kind == 1:
        edges = tuple(reader.fraction() for _ in range(reader.count(2, 1, MAX_VALUES + 1)))
        return Bins(edges=edges, open_above=reader.flag(), unit=reader.text(0, MAX_TEXT_BYTES))
    if kind in (2, 10):
        most = reader.count(2, 2, MAX_VALUES) if kind == 10 else 1
        count = reader.count(2, 1, MAX_VALUES)
        return Categories(names=tuple(reader.text(1, MAX_TEXT_BYTES) for _ in range(count)), most=most)
    if kind in (3, 6):
        x0, y0, size = (reader.fraction() for _ in range(3))
        columns, rows = reader.uint(2), reader.uint(2)
        frame = _read_frame(reader) if kind == 6 else None
        return SquareGrid(x0=x0, y0=y0, size=size, columns=columns, rows=rows, frame=frame)
    if kind == 7:
        return _read_numbers(reader)
    if kind in (5, 8):
        codes = _read_codes(reader) if kind == 8 else None
        bits, count = reader.count(1, 1, PLACE_BITS), reader.count(2, 1, MAX_VALUES)
        return Prefixes(bits=bits, cells=tuple(reader.uint(4) for _ in range(count)), codes=codes)
    resolution = reader.uint(1)
    count = reader.count(2, 1, MAX_VALUES)
    return H3Cells(resolution=resolution, cells=tuple(reader.uint(8) for _ in range(count)))


def _read_numbers(reader: Reader) -> Numbers:
    low, high, values = reader.fraction(), reader.fraction(), reader.count(2, 2, MAX_VALUES)
    outside = Outside(reader.count(1, 1, len(Outside)))
    return Numbers(low=low, high=high, values=values, outside=outside, unit=reader.text(0, MAX_TEXT_BYTES))


# Mechanisms.

# A number names the law; its parameters follow as fractions in the order of `AnswerKind.parameters`, then faces, flips.


def _encode_mechanism(mechanism: AnswerLaw | None) -> bytes:
    if mechanism is None:
        return uint(0, 1)
    names = kind_of(mechanism).parameters
    encoded = uint(MECHANISM_NUMBERS[type(mechanism)], 1)
    encoded += b"".join(fraction_bytes(getattr(mechanism, name)) for name in names)
    if isinstance(mechanism, AsymmetricVector):
        encoded += b"".join(uint(one.value, 1) for one in mechanism.flips)
    if isinstance(mechanism, SamplingDie):
        faces = mechanism.face_probabilities or ()
        encoded += uint(len(faces), 2) + b"".join(fraction_bytes(face) for face in faces)
    return encoded


def _read_die(reader: Reader, values: int) -> SamplingDie:
    rate = reader.fraction()
    faces = tuple(reader.fraction() for _ in range(reader.count(2, 0, MAX_VALUES + 1)))
    # Any rate: the rules of a window check the range.
    return SamplingDie(sampling_rate=rate, values=values, face_probabilities=faces or None, allow_large_rate=True)


def _read_mechanism(reader: Reader, values: int) -> AnswerLaw | None:
    number = reader.uint(1)
    if number == 0:
        return None
    law = next((law for law, one in MECHANISM_NUMBERS.items() if one == number), None)
    if law is None:
        raise DecodeError(f"window names the unknown mechanism {number}")
    if law is SamplingDie:
        return _read_die(reader, values)
    kind = kind_of_law(law)
    given: dict[str, Any] = {name: reader.fraction() for name in kind.parameters}
    if kind.flips:
        given["flips"] = tuple(Flips(reader.count(1, 1, len(Flips))) for _ in range(values))
    made: AnswerLaw = kind.make(values, given)
    return made


# Release and aggregators.


_DOWN: Final = 5
"""The kind of a one-sided release whose noise lies below the counts; above them it is `ReleaseKind.ONE_SIDED`."""


def _encode_release(release: Release) -> bytes:
    # One number after the kind: the variance of Gaussian noise, the epsilon of every other.
    number = release.noise_variance if release.kind is ReleaseKind.GAUSSIAN else release.noise_epsilon
    noise = b"" if number is None else fraction_bytes(number)
    thresholds = b"".join(uint(threshold, 4) for threshold in release.thresholds)
    # The levels above the cells follow the noise of the cells, if there are any; levels need noise.
    levels = b"".join(_encode_level(one) for one in release.coarser)
    several = uint(len(release.coarser), 1) + levels if levels else b""
    kind = _DOWN if release.direction == "down" else release.kind.value
    head = uint(kind, 1) + uint(bool(noise) + bool(several), 1) + noise + several
    return head + fraction_bytes(release.level) + uint(len(release.thresholds), 2) + thresholds


def _read_release(reader: Reader) -> Release:
    number = reader.count(1, 1, _DOWN)
    direction: Side = "down" if number == _DOWN else "up"
    kind = ReleaseKind.ONE_SIDED if number == _DOWN else ReleaseKind(number)
    noised, gaussian = reader.count(1, 0, 2), kind is ReleaseKind.GAUSSIAN
    noise = reader.fraction() if noised else None
    return Release(
        kind=kind,
        direction=direction,
        noise_epsilon=None if gaussian else noise,
        noise_variance=noise if gaussian else None,
        coarser=_read_coarser(reader) if noised == 2 else (),
        level=reader.fraction(),
        thresholds=tuple(reader.uint(4) for _ in range(reader.count(2, 0, MAX_OPENED))),
    )


_TOTAL: Final = 0
_MARGINS: Final = 128
"""The margin of dimension d is 128 + d; what is below is the side of a zoom, but for the total."""
_WEIGHTED: Final = 144


def _encode_level(level: CoarserLevel) -> bytes:
    number = {
        LevelKind.ZOOM: level.number,
        LevelKind.MARGIN: _MARGINS + level.number,
        LevelKind.WEIGHTED: _WEIGHTED,
        LevelKind.TOTAL: _TOTAL,
    }[level.kind]
    return uint(number, 1) + fraction_bytes(level.noise)


def _read_coarser(reader: Reader) -> tuple[CoarserLevel, ...]:
    """Return the levels above the cells: which each is, and the noise of its numbers."""
    return tuple(_read_level(reader) for _ in range(reader.count(1, 1, MAX_ZOOMS)))


def _read_level(reader: Reader) -> CoarserLevel:
    number = reader.uint(1)
    kind, place = LevelKind.ZOOM, number
    if number == _TOTAL:
        kind, place = LevelKind.TOTAL, 0
    elif number == _WEIGHTED:
        kind, place = LevelKind.WEIGHTED, 0
    elif number > _MARGINS:
        kind, place = LevelKind.MARGIN, number - _MARGINS
        if place > MAX_DIMENSIONS:
            raise DecodeError(f"window names the unknown level {number}")
    return CoarserLevel(kind=kind, number=place, noise=reader.fraction())


def _encode_aggregator(aggregator: Aggregator) -> bytes:
    texts = (aggregator.aggregator_id, aggregator.operator, aggregator.grpc_endpoint, aggregator.mqtt_broker)
    return b"".join(map(text_bytes, texts)) + aggregator.signing_public_key


def encode_key(key: HpkeKey) -> bytes:
    """Return the bytes of a sealing key: id, KEM number, public key."""
    # The KEM follows from the key's size (`check_window` allows no other), so `HpkeKey` has no field for it.
    kem = next(kem for kem, size in _KEM_SIZES.items() if size == len(key.public_key))
    return uint(key.key_id, 1) + uint(kem, 2) + key.public_key


def _read_aggregator(reader: Reader) -> Aggregator:
    identifier, operator = AggregatorId(reader.text(1, 32)), reader.text(1, MAX_TEXT_BYTES)
    endpoint, broker = (reader.text(0, MAX_ENDPOINT_BYTES) for _ in range(2))
    return Aggregator(
        aggregator_id=identifier,
        operator=operator,
        grpc_endpoint=endpoint,
        mqtt_broker=broker,
        hpke_keys=(),
        signing_public_key=reader.take(ED25519_KEY_BYTES),
    )


def read_key(reader: Reader) -> HpkeKey:
    """Return a sealing key (`encode_key`).

    Raises:
        DecodeError: an unknown KEM, or too few bytes.
    """
    key_id, kem = reader.uint(1), reader.uint(2)
    if kem not in _KEM_SIZES:
        raise DecodeError(f"window names the unknown KEM {kem:#06x}")
    return HpkeKey(key_id=key_id, public_key=reader.take(_KEM_SIZES[kem]))

"""The canonical bytes of a task, the file of a signed task, and a task as people read it (docs/wire.md, "Task").

Neither signs nor verifies; a task that decodes obeys the rules of a task, and no task has two encodings.
"""

from collections.abc import Callable
from typing import Any, Final

from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.responses import KaryResponse, Mangat, MangatVector, TwoCoin, Warner
from fleetcount_mechanisms.sampling import SamplingDie

from fleetcount_protocol.errors import DecodeError, TaskError, UsageError
from fleetcount_protocol.ids import AggregatorId, Digest
from fleetcount_protocol.layout import Reader, fraction_bytes, sized, text_bytes, uint
from fleetcount_protocol.limits import (
    MAX_AGGREGATORS,
    MAX_ENDPOINT_BYTES,
    MAX_HPKE_KEYS,
    MAX_TASK_BYTES,
    MAX_TEXT_BYTES,
    MIN_AGGREGATORS,
)
from fleetcount_protocol.task.domain import MAX_VALUES, Bins, Categories, H3Cells, SquareGrid, ValueDomain
from fleetcount_protocol.task.public_keys import ED25519_KEY_BYTES, HYBRID_KEY_BYTES, X25519_KEY_BYTES
from fleetcount_protocol.task.task import (
    Aggregator,
    HpkeKey,
    Mode,
    Release,
    ReleaseKind,
    Response,
    SignedTask,
    Task,
    UploadStyle,
)

__all__ = [
    "SIGNED_TASK_LABEL",
    "TASK_LABEL",
    "decode_signed_task",
    "decode_task",
    "encode_signed_task",
    "encode_task",
    "task_to_json",
]

TASK_LABEL: Final = b"FCTASK01"
SIGNED_TASK_LABEL: Final = b"FCSTSK01"
_SIGNATURE_BYTES: Final = 64
_MAX_SIGNED_BYTES: Final = MAX_TASK_BYTES + 13 + MAX_AGGREGATORS * (1 + _SIGNATURE_BYTES)
_KEM_SIZES: Final = {0x0020: X25519_KEY_BYTES, 0x647A: HYBRID_KEY_BYTES}
"""KEM identifiers of the HPKE registry (RFC 9180, section 7.1, and its IANA page) and their public key sizes."""


def encode_task(task: Task) -> bytes:
    """Return the canonical bytes that are hashed into the task id and signed.

    Raises:
        TaskError: they are more than `MAX_TASK_BYTES`.
    """
    parts = [
        TASK_LABEL,
        text_bytes(task.name),
        text_bytes(task.deployment),
        text_bytes(task.signal),
        _encode_domain(task.domain),
        uint(task.mode.value, 1),
        _encode_mechanism(task.mechanism),
        *(uint(time, 8) for time in _times(task)),
        uint(task.time_precision_s, 4),
        uint(task.min_batch_size, 4),
        _encode_release(task.release),
        uint(task.upload_style.value, 1),
        task.verify_key_digest,
        uint(len(task.aggregators), 1),
        *(_encode_aggregator(aggregator) for aggregator in task.aggregators),
    ]
    encoded = b"".join(parts)
    if len(encoded) > MAX_TASK_BYTES:
        raise TaskError(f"task has {len(encoded)} bytes, allowed: at most {MAX_TASK_BYTES}")
    return encoded


def decode_task(data: bytes) -> Task:
    """Return the task whose canonical bytes these are.

    Raises:
        DecodeError: they are the canonical bytes of no task that may be asked.
    """
    reader = Reader(data, "task", MAX_TASK_BYTES)
    reader.expect(TASK_LABEL)
    try:
        task = _read_task(reader)
    except (TaskError, MechanismError) as error:
        raise DecodeError(f"task that may not be asked: {error}") from error
    reader.finish()
    if task.canonical != data:
        raise DecodeError("task is not in its canonical form")
    return task


def encode_signed_task(signed: SignedTask) -> bytes:
    """Return the `.task` file of a task with the signatures it has so far.

    Raises:
        UsageError: a signature that has neither 0 nor 64 bytes, or not one place an aggregator.
    """
    if len(signed.signatures) != len(signed.task.aggregators):
        raise UsageError(f"{len(signed.signatures)} signatures for {len(signed.task.aggregators)} aggregators")
    if any(len(signature) not in (0, _SIGNATURE_BYTES) for signature in signed.signatures):
        raise UsageError(f"a signature has 0 or {_SIGNATURE_BYTES} bytes")
    signatures = b"".join(sized(signature, 1) for signature in signed.signatures)
    return SIGNED_TASK_LABEL + sized(signed.task.canonical, 4) + uint(len(signed.signatures), 1) + signatures


def decode_signed_task(data: bytes) -> SignedTask:
    """Return the task and the signatures of a `.task` file, none of which is verified here.

    Raises:
        DecodeError: it is no such file.
    """
    reader = Reader(data, "signed task", _MAX_SIGNED_BYTES)
    reader.expect(SIGNED_TASK_LABEL)
    task = decode_task(reader.sized(4, len(TASK_LABEL), MAX_TASK_BYTES))
    count = reader.count(1, MIN_AGGREGATORS, MAX_AGGREGATORS)
    signatures = tuple(reader.sized(1, 0, _SIGNATURE_BYTES) for _ in range(count))
    reader.finish()
    return signed_task(task, signatures)


def signed_task(task: Task, signatures: tuple[bytes, ...]) -> SignedTask:
    """Return the pair, refusing signatures that cannot belong to the task.

    Raises:
        DecodeError: not one place an aggregator, or a signature that has neither 0 nor 64 bytes.
    """
    if len(signatures) != len(task.aggregators):
        raise DecodeError(f"{len(signatures)} signatures for {len(task.aggregators)} aggregators")
    if any(len(signature) not in (0, _SIGNATURE_BYTES) for signature in signatures):
        raise DecodeError(f"a signature has 0 or {_SIGNATURE_BYTES} bytes")
    return SignedTask(task=task, signatures=signatures)


def _times(task: Task) -> tuple[int, int, int, int]:
    return task.round_one_opens, task.round_one_closes, task.round_two_closes, task.expiry


def _read_task(reader: Reader) -> Task:
    name, deployment, signal = (reader.text(1, MAX_TEXT_BYTES) for _ in range(3))
    domain = _read_domain(reader)
    mode = Mode(reader.count(1, 1, len(Mode)))
    mechanism = _read_mechanism(reader, domain.values)
    opens, one_closes, two_closes, expiry = (reader.uint(8) for _ in range(4))
    return Task(
        name=name,
        deployment=deployment,
        signal=signal,
        domain=domain,
        mode=mode,
        mechanism=mechanism,
        round_one_opens=opens,
        round_one_closes=one_closes,
        round_two_closes=two_closes,
        expiry=expiry,
        time_precision_s=reader.uint(4),
        min_batch_size=reader.uint(4),
        release=_read_release(reader),
        upload_style=UploadStyle(reader.count(1, 1, len(UploadStyle))),
        verify_key_digest=Digest(reader.take(Digest.SIZE)),
        aggregators=tuple(_read_aggregator(reader) for _ in range(reader.count(1, MIN_AGGREGATORS, MAX_AGGREGATORS))),
    )


# Domains.


def _encode_domain(domain: ValueDomain) -> bytes:
    if isinstance(domain, Bins):
        edges = b"".join(fraction_bytes(edge) for edge in domain.edges)
        return uint(1, 1) + uint(len(domain.edges), 2) + edges + uint(domain.open_above, 1) + text_bytes(domain.unit)
    if isinstance(domain, Categories):
        return uint(2, 1) + uint(domain.values, 2) + b"".join(text_bytes(name) for name in domain.names)
    if isinstance(domain, SquareGrid):
        lengths = b"".join(fraction_bytes(length) for length in (domain.x0, domain.y0, domain.size))
        return uint(3, 1) + lengths + uint(domain.columns, 2) + uint(domain.rows, 2)
    cells = b"".join(uint(cell, 8) for cell in domain.cells)
    return uint(4, 1) + uint(domain.resolution, 1) + uint(domain.values, 2) + cells


def _read_domain(reader: Reader) -> ValueDomain:
    kind = reader.count(1, 1, 4)
    if kind == 1:
        edges = tuple(reader.fraction() for _ in range(reader.count(2, 1, MAX_VALUES + 1)))
        return Bins(edges=edges, open_above=reader.flag(), unit=reader.text(0, MAX_TEXT_BYTES))
    if kind == 2:
        count = reader.count(2, 1, MAX_VALUES)
        return Categories(names=tuple(reader.text(1, MAX_TEXT_BYTES) for _ in range(count)))
    if kind == 3:
        x0, y0, size = (reader.fraction() for _ in range(3))
        return SquareGrid(x0=x0, y0=y0, size=size, columns=reader.uint(2), rows=reader.uint(2))
    resolution = reader.uint(1)
    count = reader.count(2, 1, MAX_VALUES)
    return H3Cells(resolution=resolution, cells=tuple(reader.uint(8) for _ in range(count)))


# Mechanisms.


# The tag of each kind and the fractions that make it up, in this order; a die is followed by its faces.
_MECHANISMS: Final[dict[type[SamplingDie | Response], tuple[int, tuple[str, ...]]]] = {
    SamplingDie: (1, ("sampling_rate",)),
    TwoCoin: (2, ("truth_probability", "yes_probability")),
    Warner: (3, ("keep",)),
    Mangat: (4, ("flip",)),
    MangatVector: (5, ("flip",)),
    KaryResponse: (6, ("keep",)),
}


def _encode_mechanism(mechanism: SamplingDie | Response | None) -> bytes:
    if mechanism is None:
        return uint(0, 1)
    tag, names = _MECHANISMS[type(mechanism)]
    encoded = uint(tag, 1) + b"".join(fraction_bytes(getattr(mechanism, name)) for name in names)
    if isinstance(mechanism, SamplingDie):
        faces = mechanism.face_probabilities or ()
        encoded += uint(len(faces), 2) + b"".join(fraction_bytes(face) for face in faces)
    return encoded


def _read_die(reader: Reader, values: int) -> SamplingDie:
    rate = reader.fraction()
    faces = tuple(reader.fraction() for _ in range(reader.count(2, 0, MAX_VALUES + 1)))
    return SamplingDie(sampling_rate=rate, values=values, face_probabilities=faces or None)


_READ_MECHANISM: Final[dict[int, Callable[[Reader, int], SamplingDie | Response | None]]] = {
    0: lambda reader, values: None,
    1: _read_die,
    2: lambda reader, values: TwoCoin(reader.fraction(), reader.fraction()),
    3: lambda reader, values: Warner(reader.fraction()),
    4: lambda reader, values: Mangat(reader.fraction()),
    5: lambda reader, values: MangatVector(reader.fraction(), values),
    6: lambda reader, values: KaryResponse(reader.fraction(), values),
}


def _read_mechanism(reader: Reader, values: int) -> SamplingDie | Response | None:
    return _READ_MECHANISM[reader.count(1, 0, 6)](reader, values)


# Release and aggregators.


def _encode_release(release: Release) -> bytes:
    noise = b"" if release.noise_epsilon is None else fraction_bytes(release.noise_epsilon)
    thresholds = b"".join(uint(threshold, 4) for threshold in release.thresholds)
    head = uint(release.kind.value, 1) + uint(bool(noise), 1) + noise + fraction_bytes(release.level)
    return head + uint(len(release.thresholds), 2) + thresholds


def _read_release(reader: Reader) -> Release:
    return Release(
        kind=ReleaseKind(reader.count(1, 1, len(ReleaseKind))),
        noise_epsilon=reader.fraction() if reader.flag() else None,
        level=reader.fraction(),
        thresholds=tuple(reader.uint(4) for _ in range(reader.count(2, 0, MAX_VALUES))),
    )


def _encode_aggregator(aggregator: Aggregator) -> bytes:
    texts = (aggregator.aggregator_id, aggregator.operator, aggregator.grpc_endpoint, aggregator.mqtt_broker)
    keys = b"".join(_encode_key(key) for key in aggregator.hpke_keys)
    return b"".join(map(text_bytes, texts)) + uint(len(aggregator.hpke_keys), 1) + keys + aggregator.signing_public_key


def _encode_key(key: HpkeKey) -> bytes:
    kem = next(kem for kem, size in _KEM_SIZES.items() if size == len(key.public_key))
    return uint(key.key_id, 1) + uint(kem, 2) + key.public_key


def _read_aggregator(reader: Reader) -> Aggregator:
    return Aggregator(
        aggregator_id=AggregatorId(reader.text(1, 32)),
        operator=reader.text(1, MAX_TEXT_BYTES),
        grpc_endpoint=reader.text(0, MAX_ENDPOINT_BYTES),
        mqtt_broker=reader.text(0, MAX_ENDPOINT_BYTES),
        hpke_keys=tuple(_read_key(reader) for _ in range(reader.count(1, 1, MAX_HPKE_KEYS))),
        signing_public_key=reader.take(ED25519_KEY_BYTES),
    )


def _read_key(reader: Reader) -> HpkeKey:
    key_id, kem = reader.uint(1), reader.uint(2)
    if kem not in _KEM_SIZES:
        raise DecodeError(f"task names the unknown KEM {kem:#06x}")
    return HpkeKey(key_id=key_id, public_key=reader.take(_KEM_SIZES[kem]))


# For people.


def task_to_json(task: Task) -> dict[str, Any]:
    """Return the task as plain values for a JSON file that people read; fractions as text, keys and ids as hexadecimal.

    There is no way back: programs exchange the canonical bytes.
    """
    release = task.release
    return {
        "task_id": task.task_id.hex(),
        "name": task.name,
        "deployment": task.deployment,
        "signal": task.signal,
        "values": task.values,
        "labels": [task.domain.label(value) for value in range(1, task.values + 1)],
        "mode": task.mode.name.lower(),
        "mechanism": _mechanism_to_json(task.mechanism),
        **dict(zip(("round_one_opens", "round_one_closes", "round_two_closes", "expiry"), _times(task), strict=True)),
        "time_precision_s": task.time_precision_s,
        "min_batch_size": task.min_batch_size,
        "release": {
            "kind": release.kind.name.lower(),
            "noise_epsilon": None if release.noise_epsilon is None else str(release.noise_epsilon),
            "level": str(release.level),
            "thresholds": list(release.thresholds),
        },
        "upload_style": task.upload_style.name.lower(),
        "verify_key_digest": task.verify_key_digest.hex(),
        "aggregators": [_aggregator_to_json(aggregator) for aggregator in task.aggregators],
    }


def _mechanism_to_json(mechanism: SamplingDie | Response | None) -> dict[str, Any] | None:
    if mechanism is None:
        return None
    shown: dict[str, Any] = {"kind": type(mechanism).__name__}
    shown |= {name: str(getattr(mechanism, name)) for name in _MECHANISMS[type(mechanism)][1]}
    if isinstance(mechanism, SamplingDie):
        shown["face_probabilities"] = [str(face) for face in mechanism.face_probabilities or ()] or "uniform"
    return shown


def _aggregator_to_json(aggregator: Aggregator) -> dict[str, Any]:
    return {
        "aggregator_id": str(aggregator.aggregator_id),
        "operator": aggregator.operator,
        "grpc_endpoint": aggregator.grpc_endpoint,
        "mqtt_broker": aggregator.mqtt_broker,
        "hpke_keys": [{"key_id": key.key_id, "public_key": key.public_key.hex()} for key in aggregator.hpke_keys],
        "signing_public_key": aggregator.signing_public_key.hex(),
    }

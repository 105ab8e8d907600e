"""A reader of release records written from docs/wire.md alone, with `cryptography` and nothing of the project.

It stands for the stranger who wants to check a published number without trusting our code.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0

    def take(self, count: int) -> bytes:
        piece = self.data[self.place : self.place + count]
        if len(piece) != count:
            raise ValueError("the bytes end too early")
        self.place += count
        return piece

    def number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(size), "big", signed=signed)

    def sized(self, size: int) -> bytes:
        return self.take(self.number(size))

    def text(self) -> str:
        return self.sized(2).decode("utf-8")

    def fraction(self) -> Fraction:
        return Fraction(self.number(8, signed=True), self.number(8))

    def wide_fraction(self) -> Fraction:
        sign = -1 if self.number(1) else 1
        return sign * Fraction(int.from_bytes(self.sized(1), "big"), int.from_bytes(self.sized(1), "big"))

    def end(self) -> None:
        if self.place != len(self.data):
            raise ValueError("bytes are left over")


@dataclass(frozen=True)
class ReadCell:
    """One cell of a record."""

    raw: int
    estimate: Fraction
    low: int
    high: int


@dataclass(frozen=True)
class ReadRecord:
    """What a record says."""

    window_id: bytes
    name: str
    public_keys: tuple[bytes, ...]
    cells: tuple[ReadCell, ...]
    sentences: tuple[str, ...]


def _skip_domain(window: _Bytes) -> None:
    kind = window.number(1)
    if kind == 1:
        for _ in range(window.number(2)):
            window.fraction()
        window.number(1)
        window.text()
    elif kind == 2:
        for _ in range(window.number(2)):
            window.text()
    elif kind in (3, 6):
        for _ in range(3):
            window.fraction()
        window.take(4)
        if kind == 6:
            window.take(2)
            window.text()
            window.text()
    else:
        window.number(1)
        window.take(8 * window.number(2))


def _skip_mechanism(window: _Bytes) -> None:
    kind = window.number(1)
    if kind == 1:
        window.fraction()
        for _ in range(window.number(2)):
            window.fraction()
    elif kind == 2:
        window.take(32)
    elif kind:
        window.fraction()


def _read_window(data: bytes) -> tuple[str, tuple[bytes, ...]]:
    """Return the window's name and its aggregators' Ed25519 keys."""
    window = _Bytes(data)
    if window.take(8) != b"FCWIND01":
        raise ValueError("not a window")
    window.take(32 + 4 + 1)  # Which window of which question.
    name = window.text()
    window.text()
    window.text()
    _skip_domain(window)
    window.number(1)
    _skip_mechanism(window)
    window.take(4 * 8 + 4 + 4)
    window.number(1)
    noised = window.number(1)
    if noised:
        window.fraction()
    if noised == 2:
        window.number(1)
    window.fraction()
    window.take(4 * window.number(2))
    window.number(1)
    window.take(32)
    keys: list[bytes] = []
    for _ in range(window.number(1)):
        for _ in range(4):
            window.text()
        keys.append(window.take(32))
    window.end()
    return name, tuple(keys)


def _skip_link(record: _Bytes) -> None:
    """Pass over the record before this one, the windows in between, and the participants."""
    if record.number(1):
        record.take(32 + 4)
    for _ in range(record.number(2)):
        record.take(4 + 4)
        record.text()
    if record.number(1):
        record.take(3 * 8)


def verify_record(data: bytes, signatures: Sequence[bytes]) -> ReadRecord:
    """Return what a record says after checking every aggregator's signature over all of it.

    Raises:
        ValueError: not the layout of docs/wire.md.
        InvalidSignature: a signature does not verify.
    """
    record = _Bytes(data)
    if record.take(8) != b"FCRECD02":
        raise ValueError("not a record")
    window = record.sized(4)
    name, keys = _read_window(window)
    if len(keys) != len(signatures):
        raise ValueError("not one signature an aggregator")
    for key, signature in zip(keys, signatures, strict=True):
        Ed25519PublicKey.from_public_bytes(key).verify(signature, data)
    _skip_link(record)
    record.take(8)
    if record.number(1):
        record.take(8)
    cells = tuple(
        ReadCell(
            raw=record.number(8, signed=True),
            estimate=record.wide_fraction(),
            low=record.number(8, signed=True),
            high=record.number(8, signed=True),
        )
        for _ in range(record.number(2))
    )
    sentences: list[str] = []
    for _ in range(record.number(1)):
        if record.number(1):
            record.text()
        sentences.append([record.text() for _ in range(5)][-1])
    record.end()
    return ReadRecord(
        window_id=hashlib.sha256(window).digest(), name=name, public_keys=keys, cells=cells, sentences=tuple(sentences)
    )

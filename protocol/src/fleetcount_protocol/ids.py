"""Identifiers of the protocol, each its own type over bytes or text.

Holds no meaning beyond size and spelling; what an identifier names is defined where that thing lives.
"""

import re
from typing import ClassVar, Self

from fleetcount_protocol.errors import DecodeError


class _FixedBytes(bytes):
    """Bytes of one exact size, shown as the start of their hexadecimal form."""

    __slots__ = ()
    SIZE: ClassVar[int]

    def __new__(cls, value: bytes) -> Self:
        if len(value) != cls.SIZE:
            raise DecodeError(f"{cls.__name__} has {len(value)} bytes, not {cls.SIZE}")
        return bytes.__new__(cls, value)  # By name: ids are made by the million, and super() costs as much again.

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.hex()[:12]}…)"

    def __str__(self) -> str:
        return self.hex()


class WindowId(_FixedBytes):
    """SHA-256 of a window's canonical bytes (docs/wire.md, "Window")."""

    __slots__ = ()
    SIZE = 32


class QuestionId(_FixedBytes):
    """SHA-256 of a question's canonical bytes (docs/wire.md, "Question")."""

    __slots__ = ()
    SIZE = 32


class ReportId(_FixedBytes):
    """A report's random name, which is also its VDAF nonce (draft-irtf-cfrg-vdaf, NONCE_SIZE)."""

    __slots__ = ()
    SIZE = 16


class SessionId(_FixedBytes):
    """The first 16 bytes of SHA-256 over a session request's canonical bytes."""

    __slots__ = ()
    SIZE = 16


class Digest(_FixedBytes):
    """A SHA-256 digest."""

    __slots__ = ()
    SIZE = 32


class AggregatorId(str):
    """An aggregator's name in a window: 1 to 32 of a-z, 0-9 and '-', starting with a letter."""

    __slots__ = ()
    _PATTERN: ClassVar[re.Pattern[str]] = re.compile(r"[a-z][a-z0-9-]{0,31}", re.ASCII)

    def __new__(cls, value: str) -> Self:
        if not cls._PATTERN.fullmatch(value):
            raise DecodeError(f"aggregator id {value[:40]!r} is not 1 to 32 of a-z, 0-9, '-' starting with a letter")
        return super().__new__(cls, value)


class UserName(str):
    """The name a broker knows a party by, one level of a topic: 1 to 64 of A-Z, a-z, 0-9, '.', '_', '-'.

    The common name of its certificate. Nothing that means something in a topic or in a pattern of access rules.
    """

    __slots__ = ()
    _PATTERN: ClassVar[re.Pattern[str]] = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)

    def __new__(cls, value: str) -> Self:
        if not cls._PATTERN.fullmatch(value):
            raise DecodeError(
                f"user name {value[:70]!a} is not 1 to 64 of A-Z, a-z, 0-9, '.', '_', '-', first a letter or digit"
            )
        return super().__new__(cls, value)

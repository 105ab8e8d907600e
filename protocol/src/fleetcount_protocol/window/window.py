"""The window: one window of a counting question, immutable, the same bytes for every party.

Making a `Window` checks every rule, so each one that exists may be asked. Reports are made and checked elsewhere.
"""

import hashlib
from dataclasses import dataclass, fields
from functools import cached_property

from fleetcount_mechanisms.errors import MechanismError

from fleetcount_protocol.errors import DecodeError, QuestionError
from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.window.codec import decode_fields, encode_fields
from fleetcount_protocol.window.fields import (
    WindowFields,
)
from fleetcount_protocol.window.rules import check_window


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
        """The hand-written canonical bytes that are hashed (docs/wire.md, "Window")."""
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

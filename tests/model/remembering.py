"""Pure functions of the product that work once for the same bytes: lists of operations meet them thousands of times.

Decides nothing, and remembers nothing that a store, a clock or an earlier call has a part in.
"""

import asyncio
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleetcount_aggregator.intake import session_opening
from fleetcount_aggregator.storage import data_keys
from fleetcount_aggregator.storage.log_slice import LoadedReports
from fleetcount_aggregator.storage.report_ids import sorted_leaf_digests
from fleetcount_aggregator.verification.share_arithmetic import sum_reports, verify_reports
from fleetcount_protocol.channel.greetings import decode_epoch, decode_greeting
from fleetcount_protocol.question.question import decode_signed_question
from fleetcount_protocol.release.commitments import leaf_digests
from fleetcount_protocol.release.record import decode_record
from fleetcount_protocol.window.signing import verify_ed25519
from fleetcount_protocol.window.window import decode_window
from fleetcount_protocol.wire.device_unsealing import unseal_columns

from tests.support.inline_workers import InlineWorkers

_REMEMBERED: Final = 4096
"""How many results of one function are kept."""
_PURE: Final = (
    *(decode_window, decode_signed_question, decode_record, decode_greeting, decode_epoch),
    *(verify_ed25519, session_opening._judge, data_keys._cipher, unseal_columns),
    *(leaf_digests, sorted_leaf_digests),
)


@contextmanager
def remembered() -> Generator[None]:
    """Let pure functions of the product work once for the same arguments; they return values that nobody changes."""
    put: list[tuple[Any, str, Any]] = []
    for function in _PURE:
        once = _Once(function)
        for module in list(sys.modules.values()):
            if module.__name__.startswith("fleetcount") and vars(module).get(function.__name__) is function:
                put.append((module, function.__name__, function))
                setattr(module, function.__name__, once)
    try:
        yield
    finally:
        for module, name, function in put:
            setattr(module, name, function)


class _Once:
    """A pure function that works once for the same arguments; the oldest results make way. An error is none."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._known: dict[Any, Any] = {}

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.under((*arguments, *named.items()), *arguments, **named)

    def under(self, key: Any, *arguments: Any, **named: Any) -> Any:
        """Return the function's value, remembered under a key that says all that goes in."""
        try:
            if key in self._known:
                return self._known[key]
        except TypeError:  # Lists and columns in it.
            key = _key(key)
        if key not in self._known:
            made = self._function(*arguments, **named)
            if len(self._known) >= _REMEMBERED:
                del self._known[next(iter(self._known))]
            self._known[key] = made
        return self._known[key]


def _key(value: Any) -> Any:
    """Return what stands for a value of plain data in a dictionary: two that differ have different ones."""
    if isinstance(value, list | tuple):
        return type(value), *map(_key, cast("Sequence[Any]", value))
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if hasattr(value, "__dataclass_fields__"):
        return type(value), *(_key(getattr(value, name)) for name in value.__dataclass_fields__)
    return value


class RememberingWorkers(InlineWorkers):
    """Computes each thing once; what a worker would load is loaded every time."""

    def __init__(self) -> None:
        self._functions: dict[Any, _Once] = {}

    async def run(self, function: Callable[..., Any], /, *arguments: Any) -> Any:
        """See `Workers.run`."""
        await asyncio.sleep(0)
        once = self._functions.setdefault(function, _Once(function))
        if function in (verify_reports, sum_reports):
            setting, loaded = arguments[0], arguments[1].load()
            return once.under((setting, loaded), setting, _Loaded(loaded))
        return once(*arguments)


@dataclass(frozen=True)
class _Loaded:
    """Reports that were loaded already."""

    reports: LoadedReports

    def load(self) -> LoadedReports:
        """See `ReportSource.load`."""
        return self.reports


class SignsOnce:
    """A signing key that signs the same bytes once: Ed25519 signatures follow from key and message."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.sign = _Once(key.sign)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._key, name)

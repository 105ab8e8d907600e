"""The directory where an operator drops questions, each with its seed beside it, and orders about questions.

The leader's operator drops NAME.question, signed by all, with NAME.seed; an operator drops NAME.order at its own
aggregator. A refused file gets a NAME.refused beside it with the reason, for good unless it changes; the file of a
question that is over is moved to `taken/`, so that thousands are not read for years. It deletes nothing but the seed of
an installed question, which the store has encrypted: with the seed one could make proofs for invalid reports.
"""

import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fleetcount_protocol.errors import PeerError, QuestionError, UsageError
from fleetcount_protocol.ids import QuestionId
from fleetcount_protocol.limits import MAX_ORDER_BYTES, VERIFY_KEY_BYTES
from fleetcount_protocol.question.orders import decode_signed_order
from fleetcount_protocol.question.question import MAX_SIGNED_QUESTION_BYTES, decode_signed_question
from fleetcount_transport.key_files import read_secret
from fleetcount_transport.logs import log

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.windows.question_install import UnconfirmedError, install_question
from fleetcount_aggregator.windows.question_orders import take_own_order

_PATIENCE: Final = 10
"""Polls for which a question waits for its seed before it is refused: two files are not dropped at one instant."""

_TAKEN: Final = "taken"
"""The folder of the files of questions that are over; nothing reads it."""
_KINDS: Final = (".question", ".order")
_Stamp = tuple[int, int]


@dataclass(slots=True)
class _Seen:
    """One file at its last poll."""

    stamp: _Stamp
    looks: int = 0
    waits: bool = False
    done: bool = False


class QuestionDirectory:
    """Polls the question directory."""

    def __init__(self, context: Context, directory: Path) -> None:
        self._context = context
        self._directory = directory
        self._seen: dict[str, _Seen] = {}
        self._questions: dict[QuestionId, Path] = {}

    async def poll(self) -> None:
        """Read every file that is new or has changed since the last poll; wait while a restored store catches up.

        Raises:
            StoreError: the store failed; the next poll reads the file again.
        """
        if self._context.questions.adopting:
            return
        changed = self._changed()
        await self._poll("question", changed, self._take_question, beside=".seed")
        await self._poll("order", changed, self._take_order)
        for question_id, path in list(self._questions.items()):
            question = self._context.questions.get(question_id)
            if question is None:
                _put_by(path, question_id)  # The question is over and no longer loaded.
            elif question.refused_by:
                _write_refusal(path, f"{question.refused_by} does not take the question; its log says why")
            if question is None or question.refused_by:
                del self._questions[question_id]

    def _changed(self) -> list[str]:
        """Return the names of files that are new, have changed or wait for their seed, in order.

        One pass that makes no objects for files that are done: thousands of questions lie here for months.
        """
        open_ones: list[str] = []
        found = 0
        with suppress(OSError), os.scandir(self._directory) as entries:
            for entry in entries:
                if not entry.name.endswith(_KINDS):
                    continue
                found += 1
                with suppress(OSError):
                    status = entry.stat()
                    stamp = (status.st_mtime_ns, status.st_size)
                    seen = self._seen.get(entry.name)
                    if seen is None or seen.stamp != stamp:
                        refused = seen is None and _refused_since(Path(entry.path), status.st_mtime_ns)
                        seen = self._seen[entry.name] = _Seen(stamp, done=refused)
                    if not seen.done:
                        open_ones.append(entry.name)
        if len(self._seen) > found:
            self._seen = {name: seen for name, seen in self._seen.items() if (self._directory / name).exists()}
        return sorted(open_ones)

    async def _poll(
        self, kind: str, names: Sequence[str], take: Callable[[Path], Awaitable[None]], beside: str = ""
    ) -> None:
        for name in names:
            path, seen = self._directory / name, self._seen[name]
            if path.suffix != f".{kind}":
                continue
            seen.looks += 1
            if beside and not path.with_suffix(beside).exists() and seen.looks < _PATIENCE:
                continue
            try:
                await take(path)
            except UnconfirmedError as error:
                if not seen.waits:
                    log.warning(f"{kind}_waits", file=path.name, reason=str(error))
                seen.waits = True
                continue
            except (UsageError, PeerError) as error:
                log.warning(f"{kind}_refused", file=path.name, reason=str(error))
                _write_refusal(path, str(error))
            seen.done = True

    async def _take_question(self, path: Path) -> None:
        signed, seed_file = decode_signed_question(_read(path, MAX_SIGNED_QUESTION_BYTES)), path.with_suffix(".seed")
        if signed.question.question_id not in self._context.questions:
            leader, own = signed.question.aggregators[0].aggregator_id, self._context.host.aggregator_id
            if leader != own:
                raise QuestionError(f"the leader is {leader!r}, this is {own!r}: drop the question there")
            await install_question(self._context, signed, _read_seed(seed_file))
            path.with_suffix(".refused").unlink(missing_ok=True)
        _remove_seed(seed_file)
        self._questions[signed.question.question_id] = path

    async def _take_order(self, path: Path) -> None:
        await take_own_order(self._context.questions, decode_signed_order(_read(path, MAX_ORDER_BYTES + 128)))
        path.with_suffix(".refused").unlink(missing_ok=True)


def _read(path: Path, largest: int) -> bytes:
    try:
        if not path.is_file():
            raise QuestionError(f"{path.name} is not a file")
        with path.open("rb") as file:
            data = file.read(largest + 1)
    except OSError as error:
        raise QuestionError(f"{path.name} cannot be read: {error.strerror}") from error
    if len(data) > largest:
        raise QuestionError(f"{path.name} has more than {largest} bytes")
    return data


def _read_seed(path: Path) -> bytes:
    seed = read_secret(path)
    if len(seed) != VERIFY_KEY_BYTES:
        raise QuestionError(f"{path.name} has {len(seed)} bytes, not {VERIFY_KEY_BYTES}")
    return seed


def _remove_seed(path: Path) -> None:
    """Remove the seed of a stored question; log an error when the directory does not allow it."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.error("seed_not_removed", file=path.name, reason=error.strerror)


def _put_by(path: Path, name: QuestionId) -> None:
    """Move the file of a question that is over to `taken/`, under its name and id."""
    try:
        taken = path.parent / _TAKEN
        taken.mkdir(exist_ok=True)
        path.replace(taken / f"{path.stem}.{name.hex()[:12]}{path.suffix}")
    except OSError as error:
        log.warning("file_not_moved", file=path.name, reason=error.strerror)


def _refused_since(path: Path, changed_ns: int) -> bool:
    """Return whether a file was refused since it last changed, by a process before this one: it is judged once."""
    with suppress(OSError):
        return path.with_suffix(".refused").stat().st_mtime_ns >= changed_ns
    return False


def _write_refusal(path: Path, reason: str) -> None:
    try:
        path.with_suffix(".refused").write_text(reason + "\n")
    except OSError as error:
        log.warning("refusal_not_written", file=path.name, reason=error.strerror)

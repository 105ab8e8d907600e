"""The records of a question as a reader keeps them: a directory with the question and one checked file a window.

Checks signatures and the chain on everything that is fetched and everything that is read again; it must not compute an
answer from them.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fleetcount_protocol.errors import FleetcountError, UsageError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.question.orders import started_by_window
from fleetcount_protocol.question.question import (
    Question,
    SignedQuestion,
    encode_signed_question,
    verify_signed_question,
    window_at,
)
from fleetcount_protocol.release.record import ReleaseRecord, verify_record_signatures
from fleetcount_protocol.release.record_json import record_from_json, record_to_json
from fleetcount_protocol.release.walk import WalkEnd, next_step
from fleetcount_protocol.window.signing import TrustedAggregator
from fleetcount_protocol.window.window import Window
from fleetcount_transport.trust_files import read_succession, succeeded

from fleetcount.command.base import CheckFailedError
from fleetcount.command.numbers import spans_text
from fleetcount.command.options import check_output_directory, read_text, write_file
from fleetcount.question.files import read_question
from fleetcount.read.report import checked_record

if TYPE_CHECKING:  # An analyst reads records without gRPC.
    from fleetcount.read.asking import WindowReader

QUESTION_FILE: Final = "question"
Taken = Callable[[ReleaseRecord, tuple[bytes, ...]], None]
_ENDED: Final = (WindowState.RELEASED, WindowState.ABORTED)


@dataclass(slots=True)
class Chain:
    """The chain of a question's records, as far as it was followed: the last record, and every window named missing.

    `pending` are windows behind the last record that have no record, and why as far as it is known; the next record
    names them with the reason that counts.
    """

    question: Question
    released: int = 0
    last: int = -1
    missing: dict[int, str] = field(default_factory=dict[int, str])
    pending: dict[int, str] = field(default_factory=dict[int, str])
    _record: ReleaseRecord | None = field(default=None, repr=False)

    def window(self, index: int) -> Window | WalkEnd:
        """Return a window whose earlier windows were all followed, or why a walk does not ask it."""
        walk = self.question.drill_down
        if walk is None or not walk.step_of(index):
            return window_at(self.question, index)
        if self._record is None or self.last != index - 1:
            nothing = self.pending.get(index - 1) == WalkEnd.NOTHING_SURVIVED.value
            return WalkEnd.NOTHING_SURVIVED if nothing else WalkEnd.WALK_ENDED
        survivors = next_step(self.question, self._record)
        return survivors if isinstance(survivors, WalkEnd) else window_at(self.question, index, survivors)

    def follow(self, record: ReleaseRecord) -> None:
        """Take the next record, which must name the last one as the one before it.

        Raises:
            CheckFailedError: a record of another question or window, or one that names another record before it.
        """
        place, link = record.window.question, record.chain
        window = self.window(place.index)
        if not isinstance(window, Window) or record.window_id != window.window_id:
            raise CheckFailedError(f"the record of window {record.window_id} is of no window of this question")
        before = None if self.last < 0 else self.last
        if (link.previous_index, link.previous) != (before, self._record and self._record.digest):
            named = "no record" if link.previous_index is None else f"that of window {link.previous_index}"
            known = "none" if before is None else f"that of window {before}"
            same = " with another digest" if link.previous_index == before else ""
            raise CheckFailedError(
                f"the record of window {place.index} says that {named} came before it{same}; the one known is {known}"
            )
        self.missing.update((one.index, one.reason) for one in link.missing)
        self.released, self.last, self._record = self.released + 1, place.index, record
        self.pending.clear()

    @property
    def asked(self) -> int:
        """The index of the first window without a known outcome."""
        return max([self.last, *self.pending]) + 1


async def fetch_windows(
    chain: Chain, ask: "WindowReader", trusted: Mapping[AggregatorId, TrustedAggregator], now: float
) -> AsyncIterator[tuple[ReleaseRecord, tuple[bytes, ...]]]:
    """Give the records of all windows not asked for yet that are released by now, each checked and followed.

    Stops at the first window that has closed and not ended yet, or that has not closed.

    Raises:
        CannotReachError: no aggregator answers.
        SignatureError, CheckFailedError: a record that does not verify or breaks the chain.
    """
    schedule = chain.question.schedule
    for index in range(chain.asked, schedule.windows):
        if schedule.closes(index) > now:
            return
        window = chain.window(index)
        if isinstance(window, WalkEnd):
            chain.pending[index] = window.value
            continue
        answer = await ask.ask(window.window_id)
        if answer is not None and answer.state not in _ENDED:
            return
        if answer is None or answer.state is WindowState.ABORTED:
            chain.pending[index] = "no window" if answer is None else answer.abort_reason
            continue
        record = checked_record(answer, window, trusted)
        chain.follow(record)
        yield record, answer.signatures


# On disk.


def record_path(directory: Path, index: int) -> Path:
    """Return the file of a window's record."""
    return directory / f"{index:05d}.json"


def open_records(directory: Path, signed: SignedQuestion, trusted: Mapping[AggregatorId, TrustedAggregator]) -> Chain:
    """Return the chain of the records that a directory has, made with its question's file if it is new.

    Raises:
        UsageError: it holds the records of another question, or cannot be written.
        QuestionError, SignatureError: the question is not signed by aggregators that are trusted.
        CheckFailedError, SignatureError: as `kept_records`.
    """
    verify_signed_question(signed, trusted)
    check_output_directory(directory)
    path = directory / QUESTION_FILE
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        write_file(path, encode_signed_question(signed))
    return kept_chain(directory, signed, trusted)


def kept_chain(
    directory: Path | None, signed: SignedQuestion, trusted: Mapping[AggregatorId, TrustedAggregator]
) -> Chain:
    """Return the chain of the records that a directory has, of none without a directory; writes nothing.

    Raises:
        UsageError: it holds the records of another question, or no question.
        QuestionError, SignatureError: the question is not signed by aggregators that are trusted.
        CheckFailedError, SignatureError: as `kept_records`.
    """
    verify_signed_question(signed, trusted)
    chain = Chain(signed.question)
    if directory is None:
        return chain
    known = question_of_records(directory).question
    if known.question_id != chain.question.question_id:
        raise UsageError(
            f"{directory} has the records of question {known.question_id}, not {chain.question.question_id}"
        )
    chain.question = known
    for _ in kept_records(directory, chain):
        pass
    return chain


def question_of_records(directory: Path) -> SignedQuestion:
    """Return the question whose records a directory has, signed by the aggregators that it names.

    Raises:
        UsageError: the directory holds no question.
        QuestionError, SignatureError: signatures that do not verify.
    """
    path = directory / QUESTION_FILE
    if not path.is_file():
        raise UsageError(f"{directory} holds no records; fetch them with 'fleetcount question release'")
    signed = read_question(path)
    verify_signed_question(signed, _described(directory, signed.question))
    return replace(signed, question=_started(directory, signed.question))


def _started(directory: Path, question: Question) -> Question:
    """Return a question with the start that its first kept record says; whether all agree shows as they are followed.

    Raises:
        UsageError: a file that is no record, or whose window no start that was signed puts there.
    """
    for path in _record_files(directory)[:1]:
        try:
            return started_by_window(question, record_from_json(read_text(path))[0].window)
        except FleetcountError as error:
            raise UsageError(f"{path}: {error}") from error
    return question


def _record_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("[0-9][0-9][0-9][0-9][0-9].json"))


def _described(directory: Path, question: Question) -> dict[AggregatorId, TrustedAggregator]:
    """Return the aggregators of a question as it names them, and as the successions beside its records say.

    Raises:
        UsageError: a succession that cannot be used.
    """
    files = sorted(directory.glob("*.succession"), key=lambda path: read_succession(path).succession.not_before)
    return {
        one.aggregator_id: succeeded(
            TrustedAggregator.of(one),
            [path for path in files if read_succession(path).succession.aggregator_id == one.aggregator_id],
        )
        for one in question.aggregators
    }


def kept_records(directory: Path, chain: Chain, taken: Taken | None = None) -> Iterator[ReleaseRecord]:
    """Give the records of a directory in the order of their windows, each checked and followed.

    A successor of a signing key may have signed, if its `*.succession` lies there, too. `taken` is told each checked
    record with its signatures before it is given.

    Raises:
        UsageError: a file that cannot be read or is no record.
        SignatureError, CheckFailedError: a record that does not verify, breaks the chain or is missing.
    """
    trusted = _described(directory, chain.question)
    for path in _record_files(directory):
        record, signatures = _read_record(path, chain.question, trusted)
        try:
            chain.follow(record)
        except CheckFailedError as error:
            anew = "'fleetcount question release' into a new directory fetches all"
            raise CheckFailedError(f"{path}: {error}; {anew}") from error
        if taken is not None:
            taken(record, signatures)
        yield record


def kept_record(directory: Path, question: Question, index: int) -> ReleaseRecord:
    """Return the record of one window of a directory whose chain was followed before, its signatures checked again.

    Raises:
        UsageError: the file cannot be read or is no record of the question.
        SignatureError, CheckFailedError: a record that does not verify, or of another window.
    """
    path = record_path(directory, index)
    record, _ = _read_record(path, question, _described(directory, question))
    if record.window.question.index != index:
        raise CheckFailedError(f"{path} holds the record of window {record.window.question.index}")
    return record


def _read_record(
    path: Path, question: Question, trusted: Mapping[AggregatorId, TrustedAggregator]
) -> tuple[ReleaseRecord, tuple[bytes, ...]]:
    """Return the record of a file and its signatures, which verify."""
    try:
        record, signatures = record_from_json(read_text(path))
    except FleetcountError as error:
        raise UsageError(f"{path}: {error}") from error
    place = record.window.question
    if place.question_id != question.question_id:
        of = f"question {place.question_id}"
        raise UsageError(f"{path} is of {of}, not of {question.question_id}; a directory holds one question")
    verify_record_signatures(record, signatures, trusted)
    return record, signatures


def save_record(directory: Path, record: ReleaseRecord, signatures: tuple[bytes, ...]) -> Path:
    """Write a window's record to its file, whole or not at all; return the file.

    Raises:
        UsageError, MachineError: it is there already, or cannot be written.
    """
    path = record_path(directory, record.window.question.index)
    write_file(path, record_to_json(record, signatures).encode(), overwrite=False)
    return path


def by_reason(windows: Mapping[int, str]) -> list[tuple[str, str]]:
    """Return every reason with its windows in words."""
    reasons = sorted(set(windows.values()))
    return [(reason, spans_text([index for index, why in windows.items() if why == reason])) for reason in reasons]

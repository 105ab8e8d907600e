"""What the program that embeds a device gets to know: whom it reaches and trusts, how a window ended, why it is silent.

It must not hold or say a truth, a coin, a key or what a message held.
"""

import enum
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from fleetcount_protocol.clock import Clock
from fleetcount_protocol.errors import PeerError, QuestionError
from fleetcount_protocol.ids import AggregatorId, WindowId
from fleetcount_protocol.question.question import Question, SignedQuestion, verify_signed_question
from fleetcount_protocol.window.domain import Part
from fleetcount_protocol.window.window import Window

from fleetcount_client.signals import Reading, fault_of
from fleetcount_client.transport import PassingTransport, Transport, Unreachable

if TYPE_CHECKING:
    from fleetcount_protocol.question.key_list import SignedKeyList
    from fleetcount_protocol.question.orders import SignedOrder
    from fleetcount_protocol.release.record import ReleaseRecord
    from fleetcount_protocol.window.signing import TrustedAggregator


# A question and a key list are checked once: their bytes never change.


class TrustStore:
    """The aggregators of one deployment that a device trusts; may be shared by many devices of one process."""

    def __init__(self, deployment: str, aggregators: "Iterable[TrustedAggregator]") -> None:
        trusted: dict[AggregatorId, TrustedAggregator] = {one.aggregator_id: one for one in aggregators}
        self._deployment = deployment
        self._trusted = MappingProxyType(trusted)
        self._checked = set[object]()

    @property
    def deployment(self) -> str:
        """The deployment whose questions are answered."""
        return self._deployment

    def check_question(self, signed: SignedQuestion) -> None:
        """Check a question's deployment and the signatures of all its aggregators, which stand for every window.

        Raises:
            QuestionError: another deployment, or an aggregator that is not trusted.
            SignatureError: a signature that is missing or does not verify.
        """
        # The signatures are part of the name: the same question under other signatures is checked anew.
        name = signed.question.question_id, signed.signatures
        if name not in self._checked:
            if signed.question.deployment != self._deployment:
                wrong = signed.question.deployment
                raise QuestionError(f"deployment of the question is {wrong!r}; allowed is {self._deployment!r}")
            verify_signed_question(signed, self._trusted)
            self._checked.add(name)

    def check_record(self, record: "ReleaseRecord", signatures: Sequence[bytes]) -> None:
        """Check that all aggregators of a record's window, every one of them trusted, have signed it.

        Raises:
            SignatureError: a signature that is missing or does not verify, or an aggregator that is not trusted.
        """
        from fleetcount_protocol.release.record import (
            verify_record_signatures,  # Only with the first record: it loads OpenSSL.
        )

        verify_record_signatures(record, signatures, self._trusted)

    def check_key_list(self, listed: "SignedKeyList", question: Question) -> None:
        """Check that an aggregator of a checked question has signed its list of sealing keys.

        Raises:
            QuestionError, SignatureError: it has not.
        """
        from fleetcount_protocol.question.key_list import verify_key_list  # As above.

        name = listed.key_list.aggregator_id
        described = next((one for one in question.aggregators if one.aggregator_id == name), None)
        if described is None:
            raise QuestionError(f"key list of {name}, which the question does not list")
        if (listed, described) not in self._checked:
            verify_key_list(listed, described, self._trusted.get(name))
            self._checked.add((listed, described))

    def check_order(self, signed: "SignedOrder", question: Question) -> None:
        """Check that an aggregator of a checked question has signed an order, and may give it.

        Raises:
            QuestionError, SignatureError: it has not, or may not.
        """
        from fleetcount_protocol.question.orders import verify_order  # As above.

        verify_order(signed, question, self._trusted)


SILENT_AFTER_S: Final = 300.0
"""After so long without an answer of anybody the device says so in its log, once."""
_LOG: Final = logging.getLogger(__name__)
_ResultT = TypeVar("_ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contact:
    """When one party last answered, Unix seconds (None: never since the start), and why the last attempt failed."""

    party: str
    last_heard: float | None = None
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalStatus:
    """How a signal was read last, at `read_at` (Unix seconds), without what it said.

    `why_none` says why it had no value, "" where it had one. `fault` says why what was read can never be a value of the
    question: it was answered as "none of them", and its owner should put it right.
    """

    path: str
    read_at: float
    why_none: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStatus:
    """What a device is doing at `now`; moments are Unix seconds of its clock.

    `contacts` has a row for each aggregator it tried since it started. `silent_since` is the first attempt that failed
    since anybody answered, None while somebody does. `next_window` is what it does something for next, at `next_at`
    (now, in the middle of a window), "" for nothing. `why_silent` says why nothing is sent, "" while something is
    ahead. `sources` has a row for each source of signals that says how it is, as a databroker does: never what it read.
    `signals` has a row for each signal that was read.
    """

    now: float
    contacts: tuple[Contact, ...]
    silent_since: float | None
    next_window: str
    next_at: float | None
    why_silent: str
    sources: tuple[Contact, ...] = ()
    signals: tuple[SignalStatus, ...] = ()


class OutcomeKind(enum.Enum):
    """How a window ended for this device."""

    DELIVERED = "delivered"
    """Every aggregator holds everything, durably."""
    REFUSED = "refused"
    """The owner's policy, the budget or the trust settings refused; nothing was sent, nothing charged."""
    REJECTED = "rejected"
    """An aggregator refused for good."""
    GIVEN_UP = "given_up"
    """A window closed before every receipt was there."""
    MISSED = "missed"
    """The window was first seen after its first window; nothing was sent, nothing charged."""
    FAILED = "failed"
    """This machine failed (disk, store); what was stored is taken up again next time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one window ended, and why; holds nothing about the answer.

    `fault` says why what the signal's source said can never be a value of the question; the answer was "none of them".
    """

    window_id: WindowId
    name: str
    kind: OutcomeKind
    reason: str = ""
    rule: str = ""
    fault: str = ""

    @classmethod
    def of(cls, window: Window, kind: OutcomeKind, reason: str, rule: str = "") -> Self:
        """Return how this window ended."""
        return cls(window_id=window.window_id, name=window.name, kind=kind, reason=reason, rule=rule)


class Contacts:
    """What came of each attempt to reach somebody; says in the log when nobody answers, and when one does again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, Contact] = {}
        self._silent_since: float | None = None
        self._said = False

    @property
    def silent_since(self) -> float | None:
        """The first attempt that failed since anybody answered, Unix seconds; None while somebody does."""
        return self._silent_since

    def all(self) -> tuple[Contact, ...]:
        """Return what is known of each party, by name."""
        return tuple(self._known[party] for party in sorted(self._known))

    def note(self, party: str, trouble: str = "") -> None:
        """Note that a party answered, or with `trouble` why it did not."""
        now, before = self._clock.now(), self._known.get(party) or Contact(party=party)
        last_heard = before.last_heard if trouble else now
        self._known[party] = Contact(party=party, last_heard=last_heard, trouble=trouble)
        if not trouble:
            if self._said and self._silent_since is not None:
                _LOG.warning("somebody answers again after %d s: %s", now - self._silent_since, party)
            self._silent_since, self._said = None, False
            return
        if trouble != before.trouble:
            _LOG.info("%s: no answer: %s", party, trouble)
        if self._silent_since is None:
            self._silent_since = now
        if not self._said and now - self._silent_since >= SILENT_AFTER_S:
            self._said = True
            _LOG.warning(
                "nobody has answered for %d s, it goes on trying: %s", now - self._silent_since, self.troubles()
            )

    def troubles(self) -> str:
        """Return why nobody answers, each reason once."""
        # Who is asked together fails for the reasons of all.
        reasons = {reason for one in self._known.values() for reason in one.trouble.split("; ") if reason}
        return "; ".join(sorted(reasons))


class SignalNotes:
    """How each signal was read last; says in the log once when what is read can never be a value."""

    def __init__(self) -> None:
        self._known: dict[str, SignalStatus] = {}

    def all(self) -> tuple[SignalStatus, ...]:
        """Return what is known of each signal, by name."""
        return tuple(self._known[path] for path in sorted(self._known))

    def note(self, window: Window, readings: Sequence[Reading], now: float) -> str:
        """Note how each signal of a window was read; return the fault, "" for none."""
        # Of several signals each says one value, whichever answer is made of them.
        several = window.vector and len(window.parts) == 1
        found = [self._note(*one, now, several=several) for one in zip(window.parts, readings, strict=True)]
        if len(found) == 1:
            return found[0]
        return "; ".join(f"{part.signal}: {fault}" for part, fault in zip(window.parts, found, strict=True) if fault)

    def _note(self, part: Part, reading: Reading, now: float, *, several: bool) -> str:
        path = part.signal
        fault, before = fault_of(reading, part.domain, several=several), self._known.get(path)
        why = "" if fault else reading.why_none
        self._known[path] = SignalStatus(path=path, read_at=now, why_none=why, fault=fault)
        if fault and (before is None or before.fault != fault):
            _LOG.warning("%s is answered as none of the values: %s", path, fault)
        return fault


class HeardTransport(PassingTransport):
    """A transport whose answers and failures are noted; it changes none of them."""

    def __init__(self, inner: Transport, contacts: Contacts) -> None:
        super().__init__(inner)
        self._contacts = contacts

    async def _passed(self, party: str, call: Callable[[], Awaitable[_ResultT]]) -> _ResultT:
        try:
            answer = await call()
        except (Unreachable, PeerError) as error:
            self._contacts.note(party, str(error))
            raise
        self._contacts.note(party)
        return answer


def contacts_of(sources: Iterable[object]) -> tuple[Contact, ...]:
    """Return what sources of signals say of whom they ask, by name; one without a property `contact` says nothing."""
    said = (getattr(source, "contact", None) for source in sources)
    known = {one.party: one for one in said if isinstance(one, Contact)}
    return tuple(known[party] for party in sorted(known))

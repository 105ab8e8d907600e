"""Every error the protocol can raise, and the closed list of reasons a report can be refused for.

    FleetcountError
    ├── UsageError            the caller's fault: a wrong argument, a wrong file, a wrong configuration
    │   └── QuestionError         a window that cannot be asked (names the field, the value and the range)
    ├── PeerError             the other side's fault: what arrived is not what the protocol allows
    │   ├── DecodeError       bytes that are not fully understood
    │   ├── SealError         a sealed message that does not open
    │   ├── SignatureError    a signature, MAC or certificate that does not verify
    │   ├── VerificationFailed  a report whose proof does not hold
    │   └── Refused           a named refusal (a `RejectReason`) from the other side
    └── MachineError          this machine's fault: disk, store, clock, network

A bad report is not an error: it is a counted `RejectReason`. Texts of these errors never reach a peer.
"""

import enum


class FleetcountError(Exception):
    """Base of every error of the protocol packages."""


class UsageError(FleetcountError):
    """The caller gave something that cannot be used; the message names the value and the allowed range."""


class QuestionError(UsageError):
    """A question or window that breaks a rule, so that no honest party may ask or answer it."""


class PeerError(FleetcountError):
    """The other side sent something the protocol does not allow."""


class DecodeError(PeerError):
    """Bytes that are not the canonical encoding of the expected value."""


class SealError(PeerError):
    """A sealed message that does not open under the key and context it claims."""


class SignatureError(PeerError):
    """A signature, receipt or certificate that does not verify."""


class VerificationFailed(PeerError):  # noqa: N818 - named for the event, as in the VDAF draft.
    """A report whose validity proof does not hold."""


class MachineError(FleetcountError):
    """Disk, store, clock or network of this machine failed."""


class RejectReason(enum.Enum):
    """Why an aggregator refused a report; the closed list counted at every aggregator (docs/wire.md, "Refusals").

    The value is the number on the wire; 0 is never used.
    """

    UNKNOWN_WINDOW = 1
    UNKNOWN_SESSION = 2
    TOO_EARLY = 3
    TOO_LATE = 4
    MALFORMED = 5
    BAD_SEAL = 6
    DUPLICATE_OTHER_BYTES = 7
    OVER_QUOTA = 8
    HALF_PAIR = 9
    MISSING_AT_PEER = 10
    INVALID_PROOF = 11
    BAD_CERTIFICATE = 12
    BAD_SIGNATURE = 13
    EXPIRED = 14
    UNKNOWN_KEY = 15
    WRONG_ROUND = 16
    WINDOW_CLOSED = 17
    BUSY = 18

    @property
    def label(self) -> str:
        """The reason as it is written in metrics, logs and output: lower case with underscores."""
        return self.name.lower()

    @property
    def final(self) -> bool:
        """Whether sending the same bytes again is pointless (False: the sender should retry later)."""
        return self not in {RejectReason.BUSY, RejectReason.TOO_EARLY}


class PeerProblem(enum.Enum):
    """Why an aggregator does not serve a request of another one: the closed list of words in a call's status."""

    NOT_YET = "not_yet"
    """The window's rounds are still open here, or a step before this one is missing: the caller may retry later."""
    BUSY = "busy"
    UNKNOWN_WINDOW = "unknown_window"
    UNKNOWN_AGGREGATOR = "unknown_aggregator"
    """A device's request names an aggregator that is not here."""
    NOT_LEADER = "not_leader"
    CONFLICT = "conflict"
    """This step was done before with other content; the first content is final."""
    TOO_FEW = "too_few"
    ABORTED = "aborted"
    RELEASED = "released"
    DISAGREES = "disagrees"
    """This aggregator recomputed the result and got another one."""
    BEHIND = "behind"
    """The calling aggregator's ledger is shorter than it was: a restored backup."""
    POSTERIOR_TOO_LARGE = "posterior_too_large"
    """The record would reveal more of a device than the operator allows (`largest_posterior`)."""
    WINDOW_REFUSED = "window_refused"
    STALE_EPOCH = "stale_epoch"
    """A newer start of the calling aggregator is known: the caller is the older of two processes, or a restored copy.
    """
    MALFORMED = "malformed"

    @property
    def transient(self) -> bool:
        """Whether a retry can succeed."""
        return self in {PeerProblem.NOT_YET, PeerProblem.BUSY, PeerProblem.UNKNOWN_WINDOW}


class Refused(PeerError):  # noqa: N818 - named for the event: a refusal is an answer, not a fault.
    """The other side refused, with a reason from the closed list."""

    def __init__(self, reason: RejectReason) -> None:
        super().__init__(reason.label)
        self.reason = reason

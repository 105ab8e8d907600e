"""The identity that is accountable for a message: the digest of a public key; nothing here requires a certificate."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a caller, and the pseudonym of the device that it acts for if it is a relay.

    `key` is accountable (for TLS the digest of a public key, decision 5): shares are per `key`. `carried` is the
    pseudonym, b"" for the caller itself: turns are fair among these too, within the share of `key`, and faults are
    counted for each, so that one device's faults through a relay do not count against the others.
    """

    key: bytes
    carried: bytes = b""


LOCAL: Final = Identity(b"local")
"""The identity of calls inside this process."""

"""Who is answerable for what arrives. A value: today the digest of a public key, and no rule asks for a certificate."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Identity:
    """Who came in by a door, and for whom if it carries for others.

    `key` names who is answerable (for TLS the digest of a public key, decision 5): shares are by it alone. `carried`
    is whom it says it acts for, b"" for itself: turns go round among those too, within the share of `key`, and faults
    are counted for each, so that what one device sends through a relay is not held against the others.
    """

    key: bytes
    carried: bytes = b""


LOCAL: Final = Identity(b"local")
"""Who calls inside this process."""

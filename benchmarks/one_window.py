"""What benchmarks ask: a question, mostly of one window."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.question.fields import Coin, Participants, Schedule
from fleetcount_protocol.question.question import Question, SignedQuestion, sign_question
from fleetcount_protocol.window.domain import ValueDomain
from fleetcount_protocol.window.fields import Aggregator, Mode, Release, ReleaseKind, UploadStyle

SEED: Final = bytes(range(32))
"""What the verify keys of `draft` are derived from."""
LEAST_EVERY_S: Final = 60
"""An aggregator makes a window so long before it opens, or as soon as the question is there."""


def once(opens: int, round_one_s: int, round_two_s: int, *, expiry_s: int = 86_400) -> Schedule:
    """Return the schedule of one window, which opens at a Unix second."""
    return Schedule(
        first=opens,
        every_s=max(LEAST_EVERY_S, round_one_s + round_two_s),
        windows=1,
        round_one_s=round_one_s,
        round_two_s=round_two_s,
        expiry_s=expiry_s,
    )


def draft(
    aggregators: Sequence[Aggregator],
    domain: ValueDomain,
    schedule: Schedule,
    *,
    sampling_rate: Fraction = Fraction(1, 10),
    **changes: Any,
) -> Question:
    """Return a sampling question that nobody has signed, with some fields changed."""
    fields: dict[str, Any] = {
        "name": "bench",
        "deployment": "bench",
        "signal": "Vehicle.CurrentLocation",
        "domain": domain,
        "mode": Mode.SAMPLING,
        "mechanism": SamplingDie.uniform(sampling_rate, domain.values),
        "aggregators": tuple(replace(one, hpke_keys=()) for one in aggregators),
        "schedule": schedule,
        "coin": Coin.WINDOW,
        "participants": Participants.HIDDEN,
        "delta": Fraction(1, 10**9),
        "time_precision_s": 1,
        "min_batch_size": 2,
        "release": Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(1), level=Fraction(19, 20)),
        "upload_style": UploadStyle.TWO_INSTALMENTS,
        "verify_seed_digest": Digest(hashlib.sha256(SEED).digest()),
    }
    return Question(**(fields | changes))


def signed_by(question: Question, keys: Sequence[Ed25519PrivateKey]) -> SignedQuestion:
    """Return a question with the signature of every aggregator."""
    return SignedQuestion(question=question, signatures=tuple(sign_question(question, key) for key in keys))

"""Whether the window in which a device is asked is as likely as any other, and moved by no choice of a question.

The law is written out here once more, on purpose: a check must not take the expected law from the tested code.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from fleetcount_client.answering import slot_of
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.ids import QuestionId
from scipy.special import bdtr, betainc

from fleetcount_evidence.audit.noise_checks import Check
from fleetcount_evidence.audit.releases import SECRET_BYTES, SystemBlocks

CYCLES: Final = (5, 720)
"""W, one window in how many: the attacked one, and the hours of 30 days, which one byte could not number."""
_ONE: Final = QuestionId(bytes(QuestionId.SIZE))
_ANOTHER: Final = QuestionId(bytes([1]) * QuestionId.SIZE)


def uniform_p(slots: Sequence[int], one_in: int) -> float:
    """Return the p-value of the test that windows 0 to one_in - 1 are drawn independently, each as often as any other.

    `slots` is (n,). Each window's number is compared with Binomial(n, 1/one_in), exactly and on both sides, and the
    least of these chances times their number, 2 one_in, is the p-value (Bonferroni); a window outside the range gives
    0.
    """
    if not all(0 <= slot < one_in for slot in slots):
        return 0.0
    hits, trials = np.bincount(np.array(slots, dtype=np.int64), minlength=one_in), len(slots)
    at_most = bdtr(hits.astype(np.float64), trials, 1 / one_in)
    at_least = np.where(hits == 0, 1.0, betainc(np.maximum(hits, 1), trials - hits + 1.0, 1 / one_in))
    return min(1.0, 2 * one_in * float(np.minimum(at_most, at_least).min()))


def chosen_question(one_in: int) -> QuestionId:
    """Return the id of a question that whoever chooses it would take to meet a device in window 0.

    He tries ids until the derivation gives 0 with what he lacks, the secret, left out: of one_in ids about one. After a
    hundred times as many he takes any: a derivation that leaves out the id gives the same window for all.
    """
    tried = (QuestionId(SystemRandom.random_bytes(QuestionId.SIZE)) for _ in range(100 * one_in))
    return next((question for question in tried if slot_of(b"", question, one_in) == 0), _ANOTHER)


def check_slots(draws: int) -> Iterator[Check]:
    """Yield the checks of the window that a device derives, each over `draws` of its windows.

    Of fresh secrets and a question that was chosen; of one secret and many questions; and by how much another question
    moves the windows of fresh secrets, which must not be told from the questions.
    """
    for one_in in CYCLES:
        source, chosen = SystemBlocks(), chosen_question(one_in)
        secrets = [source.random_bytes(SECRET_BYTES) for _ in range(draws)]
        first = [slot_of(secret, chosen, one_in) for secret in secrets]
        moved = [(slot_of(secret, _ONE, one_in) - slot) % one_in for secret, slot in zip(secrets, first, strict=True)]
        asked = (QuestionId(source.random_bytes(QuestionId.SIZE)) for _ in range(draws))
        of_one = [slot_of(secrets[0], question, one_in) for question in asked]
        found = {"of fresh secrets": first, "of one secret by question": of_one, "moved by another question": moved}
        for name, slots in found.items():
            title = f"one window of {one_in}, {name}: uniform"
            yield Check(name=title, p_value=uniform_p(slots, one_in), draws=draws)

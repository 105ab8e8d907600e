"""In which window a device is asked: uniform over secrets and over questions, and moved by no choice of a question."""

from collections.abc import Callable

import numpy as np
import pytest
from fleetcount_client.answering import slot_of
from fleetcount_evidence.audit import run, slot_checks
from fleetcount_evidence.audit.questions import ONE_WINDOW, questions
from fleetcount_evidence.audit.slot_checks import CYCLES, check_slots, chosen_question, uniform_p
from fleetcount_protocol.ids import QuestionId
from scipy import stats

CHANCE_OF_ERROR = 1e-9
"""That the right law fails a test here: a tenth of it for each of six p-values."""
Slot = Callable[[bytes, QuestionId, int], int]


def failed(draws: int = 25_000) -> set[str]:
    return {check.name for check in check_slots(draws) if check.p_value < CHANCE_OF_ERROR / 10}


def test_the_window_of_a_device_is_uniform_and_moved_by_no_chosen_question() -> None:
    assert failed() == set()


# Each is a likely mistake of the derivation, and breaks one of the checks.


def of_the_question(_: bytes, question: QuestionId, one_in: int) -> int:
    return slot_of(b"", question, one_in)


def of_the_secret(secret: bytes, _: QuestionId, one_in: int) -> int:
    return slot_of(secret, QuestionId(bytes(QuestionId.SIZE)), one_in)


def shifted_by_the_question(secret: bytes, question: QuestionId, one_in: int) -> int:
    return (of_the_secret(secret, question, one_in) + of_the_question(secret, question, one_in)) % one_in


def of_one_byte(secret: bytes, question: QuestionId, one_in: int) -> int:
    return slot_of(secret, question, 256) % one_in


def from_one_on(secret: bytes, question: QuestionId, one_in: int) -> int:
    return slot_of(secret, question, one_in) + 1


@pytest.mark.parametrize(
    ("bug", "seen"),
    [
        (of_the_question, "one window of 5, of fresh secrets: uniform"),
        (of_the_question, "one window of 720, moved by another question: uniform"),
        (of_the_secret, "one window of 5, of one secret by question: uniform"),
        (shifted_by_the_question, "one window of 5, moved by another question: uniform"),
        (of_one_byte, "one window of 720, of fresh secrets: uniform"),
        (from_one_on, "one window of 720, of one secret by question: uniform"),
    ],
)
def test_a_mistake_in_the_derivation_is_seen(monkeypatch: pytest.MonkeyPatch, bug: Slot, seen: str) -> None:
    monkeypatch.setattr(slot_checks, "slot_of", bug)

    assert seen in failed(3_000 if bug is not of_one_byte else 25_000)


def test_a_window_is_chosen_by_trying_where_the_secret_is_left_out() -> None:
    assert [slot_of(b"", chosen_question(one_in), one_in) for one_in in CYCLES] == [0, 0]


def test_the_p_value_is_the_exact_binomial_one_of_the_rarest_number_times_all() -> None:
    slots = [0] * 30 + [1] * 12 + [2] * 18

    exact = min(min(stats.binom.cdf(hits, 60, 1 / 3), stats.binom.sf(hits - 1, 60, 1 / 3)) for hits in (30, 12, 18))

    assert uniform_p(slots, 3) == pytest.approx(6 * exact, rel=1e-9)
    assert uniform_p([0, 1, 3], 3) == 0
    # A window that is never drawn, and one that always is.
    assert uniform_p([0] * 50, 2) == pytest.approx(4 * 0.5**50)


def test_a_p_value_below_a_level_is_no_more_frequent_than_the_level() -> None:
    rng = np.random.default_rng(7)

    found = [uniform_p(rng.integers(5, size=200).tolist(), 5) for _ in range(2_000)]

    for level in (0.01, 0.05, 0.2):
        assert stats.binomtest(sum(one <= level for one in found), 2_000, level, alternative="greater").pvalue > 1e-6


def test_an_audit_checks_windows_where_it_asks_in_one_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "check_noise", lambda *_: [])
    monkeypatch.setattr(run, "draws_after_restarts", lambda laws: [()] * len(laws))
    monkeypatch.setattr(run, "_READINGS", 50)
    asked, others = questions(ONE_WINDOW)[:1], questions("warner")[:1]

    for chosen, checked in ((asked, 3 * len(CYCLES)), (others, 0)):
        audit = run.run_audit(chosen, 1_000, draws=500, processes=1, step=lambda *_: None)
        assert sum(one.name.startswith("one window of") for one in audit.checks) == checked
        assert all(one.passed for one in audit.checks)

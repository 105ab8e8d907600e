"""A walk of real devices: the window of each step follows from the record before, and the account is of its own
cells.
"""

from dataclasses import replace
from fractions import Fraction

import pytest
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.question.fields import DrillDown
from fleetcount_protocol.question.question import window_at
from fleetcount_protocol.release.chain import ChainLink, MissingWindow
from fleetcount_protocol.window.domain import Prefixes
from fleetcount_protocol.window.fields import Mode
from fleetcount_protocol.window.window import Window
from fleetcount_simulator.network.plan import faultless_plan, widest_step
from fleetcount_simulator.network.question import question_of
from fleetcount_simulator.network.watch import WindowEnd, window_after

from tests.simulator.network_cases import case_of
from tests.support.protocol_samples import record
from tests.support.question_samples import drill_down_question


def step(window: Window, *busy: int, late_s: int = 0) -> WindowEnd:
    """Return a step with its record, in which the cells at these places of its list have 50 devices."""
    made = record(window, chain=link(window), released_at=window.round_two_closes + 60 + late_s)
    cells = tuple(replace(cell, estimate=Fraction(50 * (place in busy))) for place, cell in enumerate(made.cells))
    return WindowEnd(window=window, answer=None, record=replace(made, cells=cells), at=0.0)


def link(window: Window) -> ChainLink:
    missing = tuple(MissingWindow(index=index, reason="paused") for index in range(window.question.index))
    return ChainLink(previous=None, previous_index=None, missing=missing)


def test_a_step_asks_the_children_of_what_the_record_before_shows_busy() -> None:
    walking = drill_down_question()
    first = window_after(walking, 0, None)
    assert first is not None

    second = window_after(walking, 1, step(first, 1, 3))

    assert second is not None
    assert second.canonical == window_at(walking, 1, (2, 7)).canonical
    assert window_after(walking, 3, None) == window_at(walking, 3)


def test_a_step_behind_no_record_a_late_one_or_no_survivor_is_not_come_to() -> None:
    walking = drill_down_question()
    first = window_after(walking, 0, None)
    assert first is not None

    assert window_after(walking, 1, None) is None
    assert window_after(walking, 1, replace(step(first, 1), record=None)) is None
    assert window_after(walking, 1, step(first)) is None
    assert window_after(walking, 1, step(first, 1, late_s=3600)) is None


def test_the_truths_of_a_step_are_those_of_its_own_cells() -> None:
    domain = Prefixes(bits=4, cells=tuple(range(16)))
    walk = DrillDown(levels=(4, 8), threshold=5, most_survivors=2)
    plan = faultless_plan(domain, [[0x12000000, 0x13000000, 0x56000000, None]] * 2, walk)

    assert plan.truths_of(0, domain).tolist() == [2, 2, 6, 0]
    assert plan.truths_of(1, Prefixes(bits=8, cells=(0x12, 0x13))).tolist() == [1, 2, 0, 0]


@pytest.mark.parametrize(
    ("levels", "survivors", "values", "bits"), [((4, 8), 4, 64, 8), ((8, 10), 3, 256, 8), ((2, 4, 12), 9, 2304, 12)]
)
def test_windows_have_room_for_the_step_that_may_ask_most(
    levels: tuple[int, ...], survivors: int, values: int, bits: int
) -> None:
    first = Prefixes(bits=levels[0], cells=tuple(range(1 << levels[0])))
    law = SamplingDie.uniform(Fraction(1, 4), first.values)
    question = replace(question_of(case_of()), domain=first, mode=Mode.SAMPLING, mechanism=law)

    widest = widest_step(question, DrillDown(levels=levels, threshold=5, most_survivors=survivors))

    assert isinstance(widest.domain, Prefixes)
    assert (widest.domain.values, widest.domain.bits) == (values, bits)
    assert isinstance(widest.mechanism, SamplingDie)
    assert (widest.mechanism.values, widest.mechanism.sampling_rate) == (values, Fraction(1, 4))

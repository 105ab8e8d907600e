"""Every party derives the same next step of a walk from the public record of the step before, and nothing else."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from fleetcount_mechanisms.responses import KaryResponse
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.errors import QuestionError, UsageError
from fleetcount_protocol.question.fields import DrillDown, candidates, surviving_cells
from fleetcount_protocol.question.question import decode_question, window_at
from fleetcount_protocol.release.chain import ChainLink
from fleetcount_protocol.release.record import decode_record
from fleetcount_protocol.window.codes import CodeForm, Codes
from fleetcount_protocol.window.domain import Categories, Prefixes, all_prefixes
from fleetcount_protocol.window.fields import Mode
from fleetcount_protocol.window.window import decode_window
from hypothesis import given
from hypothesis import strategies as st

from tests.support.protocol_samples import record
from tests.support.question_samples import HOURLY, SUBMITTED, drill_down_question, sampling_question

QUESTION = drill_down_question()
assert QUESTION.drill_down is not None
WALK = QUESTION.drill_down
FIRST_STEP = Prefixes(bits=3, cells=(1, 2, 5, 7))
assert QUESTION.domain == FIRST_STEP


def counts(*numbers: int) -> tuple[Fraction, ...]:
    return tuple(map(Fraction, numbers))


@pytest.mark.parametrize(
    ("estimates", "survivors"),
    [
        ((39, 38, -5, 0), ()),
        ((40, 38, 39, 41), (1, 7)),
        ((50, 40, 60, 70), (1, 5, 7)),
        ((40, 40, 40, 40), (1, 2, 5)),
        ((41, 40, 40, 40), (1, 2, 5)),
        ((40, 40, 40, 41), (1, 2, 7)),
    ],
)
def test_the_busiest_cells_at_the_threshold_survive(estimates: tuple[int, ...], survivors: tuple[int, ...]) -> None:
    assert surviving_cells(FIRST_STEP, counts(*estimates), WALK) == survivors


def test_the_threshold_is_compared_exactly() -> None:
    below = Fraction(40) - Fraction(1, 10**30)

    assert surviving_cells(FIRST_STEP, (below, Fraction(40), below, below), WALK) == (2,)
    with pytest.raises(UsageError, match="3 estimates for 4 cells"):
        surviving_cells(FIRST_STEP, counts(1, 2, 3), WALK)


@given(st.lists(st.integers(0, 80), min_size=32, max_size=32), st.integers(1, 31))
def test_survivors_are_what_a_list_of_all_cells_by_rank_gives(numbers: list[int], most: int) -> None:
    walk = DrillDown(levels=(5, 12), threshold=40, most_survivors=most)
    domain = Prefixes(bits=5, cells=tuple(range(32)))
    better = [[other for other in range(32) if (-numbers[other], other) < (-numbers[cell], cell)] for cell in range(32)]
    expected = tuple(cell for cell in range(32) if numbers[cell] >= 40 and len(better[cell]) < most)

    assert surviving_cells(domain, counts(*numbers), walk) == expected


def test_the_next_step_asks_about_all_children() -> None:
    assert candidates((1, 5), WALK, 1) == Prefixes(bits=5, cells=(4, 5, 6, 7, 20, 21, 22, 23))
    last = candidates((4, 23), WALK, 2)
    assert (last.bits, last.cells) == (12, (*range(4 << 7, 5 << 7), *range(23 << 7, 24 << 7)))


def test_a_walk_over_codes_leaves_out_what_no_code_begins_with() -> None:
    codes = Codes(form=CodeForm.TEXT, alphabet="ABCDE", length=2)
    walk = DrillDown(levels=(3, 6), threshold=40, most_survivors=3)
    question = drill_down_question(Mode.DIRECT, domain=all_prefixes(3, codes), drill_down=walk)

    assert window_at(question, 0).domain == Prefixes(bits=3, cells=(1, 2, 3, 4, 5), codes=codes)
    last = window_at(question, 1, (1, 5))
    assert last.domain == Prefixes(bits=6, cells=(*range(8, 14), *range(40, 46)), codes=codes)
    assert [last.domain.label(value) for value in (1, 2, 12)] == ["A", "AA", "EE"]
    assert decode_window(last.canonical) == last
    assert decode_question(question.canonical) == question
    with pytest.raises(QuestionError, match="level is 7, allowed: a whole number from 1 to 6"):
        drill_down_question(Mode.DIRECT, domain=question.domain, drill_down=replace(walk, levels=(3, 7)))


@pytest.mark.parametrize("survivors", [(), (1, 2, 5, 7), (5, 1), (1, 1), (-1, 2), (1, 8)])
def test_survivors_that_no_step_leaves_are_refused(survivors: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"cells survived, allowed|surviving cells must ascend"):
        window_at(QUESTION, 1, survivors)


@pytest.mark.parametrize("mode", [Mode.SAMPLING, Mode.DIRECT])
def test_a_walk_from_record_to_record(mode: Mode) -> None:
    question = drill_down_question(mode)
    other = decode_question(question.canonical)
    assert question.drill_down is not None
    survivors: tuple[int, ...] = ()
    link = ChainLink(previous=None, previous_index=None, missing=())
    for index, bits in enumerate((3, 5, 12, 3, 5, 12)):
        window = window_at(question, index, survivors)
        assert isinstance(window.domain, Prefixes)
        assert window.domain.bits == bits
        assert window.canonical == window_at(other, index, survivors).canonical
        assert decode_window(window.canonical) == window
        if window.mechanism is not None:
            assert window.mechanism == SamplingDie.uniform(Fraction(1, 2), window.values, allow_large_rate=True)

        made = record(window, chain=link)
        read = decode_record(made.canonical)
        assert isinstance(read.window.domain, Prefixes)
        survivors = surviving_cells(read.window.domain, [cell.estimate for cell in read.cells], question.drill_down)
        assert len(survivors) == 3
        link = ChainLink(previous=made.digest, previous_index=index, missing=())
        if bits == 12:
            survivors = ()


def test_a_walk_may_be_counted_from_its_submission() -> None:
    question = drill_down_question(schedule=replace(SUBMITTED, windows=6))

    assert question.schedule.first is None
    assert decode_question(question.canonical) == question


def test_a_window_with_other_survivors_is_another_window() -> None:
    first, window = window_at(QUESTION, 0), window_at(QUESTION, 1, (1, 5))

    assert window_at(QUESTION, 1, (1, 5)) is window
    assert window_at(QUESTION, 0) is first, "a device goes back and forth between a step and the one before"
    for other in ((1, 2), (1,), (1, 2, 5)):
        assert window_at(QUESTION, 1, other).window_id != window.window_id
    with pytest.raises(UsageError, match="0 cells survived"):
        window_at(QUESTION, 1)


def test_survivors_are_for_later_steps_only() -> None:
    for question, index in ((QUESTION, 0), (QUESTION, 3), (sampling_question(), 1)):
        with pytest.raises(UsageError, match=f"window {index} follows no step of a drill-down"):
            window_at(question, index, (1,))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"levels": (3,)}, "number of levels is 1, allowed: a whole number from 2 to 8"),
        ({"levels": tuple(range(3, 12))}, "number of levels is 9"),
        ({"levels": (3, 5, 33)}, "level is 33, allowed: a whole number from 1 to 32"),
        ({"levels": (0, 3, 5)}, "level is 0"),
        ({"levels": (3, 5, 5)}, "levels are .*, allowed: ascending"),
        ({"levels": (2, 5, 12)}, "begins with two or more prefixes of 2 bits"),
        ({"levels": (3, 5, 12, 13)}, "windows is 6, allowed: a multiple of the 4 levels"),
        ({"levels": (3, 5, 17)}, "a cell has 4096 children, allowed: at most 4095"),
        ({"threshold": 0}, "threshold is 0, allowed: a whole number from 1"),
        ({"threshold": 2**32}, "threshold is 4294967296"),
        ({"most_survivors": 0}, "most_survivors, each of 128 children, is 0, allowed: a whole number from 1 to 31"),
        ({"most_survivors": 32}, "most_survivors, each of 128 children, is 32"),
    ],
)
def test_a_drill_down_never_has_more_than_4095_candidates(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(QuestionError, match=why):
        drill_down_question(drill_down=replace(WALK, **changes))


def test_levels_of_the_papers_places_fit() -> None:
    first = Prefixes(bits=11, cells=tuple(range(2_048)))
    four = DrillDown(levels=(11, 18, 25, 32), threshold=1, most_survivors=31)
    six = DrillDown(levels=(12, 16, 20, 24, 28, 32), threshold=1, most_survivors=255)
    die = SamplingDie.uniform(Fraction(1, 4), 2_048)
    fine = drill_down_question(domain=first, mechanism=die, drill_down=four, schedule=replace(HOURLY, windows=4))
    coarse = Prefixes(bits=12, cells=tuple(range(4_095)))
    sixfold = drill_down_question(domain=coarse, mechanism=SamplingDie.uniform(Fraction(1, 4), 4_095), drill_down=six)

    assert window_at(fine, 3, tuple(range(31))).values == 31 * 128
    assert window_at(sixfold, 5, tuple(range(255))).values == 255 * 16


def test_a_drill_down_promises_the_same_at_every_step() -> None:
    faces = (Fraction(1, 4), Fraction(1, 16), Fraction(1, 16), Fraction(1, 16), Fraction(1, 16))
    die = SamplingDie(sampling_rate=Fraction(1, 2), values=4, face_probabilities=faces, allow_large_rate=True)
    with pytest.raises(QuestionError, match="a drill-down is direct or throws a uniform die"):
        drill_down_question(mechanism=die)
    direct = drill_down_question(Mode.DIRECT)
    with pytest.raises(QuestionError, match="a drill-down is direct or throws a uniform die"):
        replace(direct, mode=Mode.RESPONSE, mechanism=KaryResponse(Fraction(1, 2), 4))
    with pytest.raises(QuestionError, match="begins with two or more prefixes"):
        drill_down_question(
            domain=Categories(names=("a", "b", "c", "d")),
        )
    with pytest.raises(QuestionError, match="begins with two or more prefixes"):
        drill_down_question(
            domain=Prefixes(bits=3, cells=(1,)), mechanism=SamplingDie.uniform(Fraction(1, 2), 1, allow_large_rate=True)
        )

"""A vehicle with several codes tells one of them, any with the same chance, and the same one in all steps of a walk."""

from collections import Counter
from pathlib import Path

import pytest
from fleetcount_client.answering import choice_of, truth_of
from fleetcount_client.private_places import PrivatePlaces, PrivateSignal
from fleetcount_client.signals import FileSource, Reading, SignalFault, fault_of
from fleetcount_mechanisms.randomness import SeededRandom
from fleetcount_protocol.ids import QuestionId
from fleetcount_protocol.question.fields import DrillDown
from fleetcount_protocol.question.question import Question, window_at
from fleetcount_protocol.window.codes import CodeForm, Codes
from fleetcount_protocol.window.domain import Categories, Prefixes, all_prefixes
from fleetcount_protocol.window.window import Window
from scipy import stats

from tests.client.deployment import Deployment
from tests.client.test_walks import driven, released, said, walking

DTC = Codes(form=CodeForm.DTC)
SECRET = bytes(range(32))
QUESTION_ID = QuestionId(bytes(32))
SEVERAL = frozenset({"P0301", "P0302", "C1234", "U0100"})
"""Two of them begin alike for twelve bits."""


def asking(world: Deployment, **changes: object) -> Question:
    """Return two walks over the codes of two bytes, by steps of 4, 10 and 16 bits."""
    walk = DrillDown(levels=(4, 10, 16), threshold=40, most_survivors=4)
    return walking(world, **({"domain": all_prefixes(4, DTC), "drill_down": walk} | changes))


def number_of(code: str) -> int:
    number = DTC.number_of(code)
    assert number is not None
    return number


def step(question: Question, walk: int, index: int) -> Window:
    """Return a step of a walk that asks about all parts of where the codes are."""
    levels = (4, 10, 16)
    before = sorted({number_of(code) >> 16 - levels[index - 1] for code in SEVERAL}) if index else ()
    return window_at(question, 3 * walk + index, tuple(before))


def label(window: Window, value: object) -> str:
    assert isinstance(value, int)
    return window.domain.label(value) if value else "none"


def told(window: Window, codes: frozenset[str], choice: bytes) -> str:
    """Return the label of what a device tells."""
    return label(window, truth_of(window, Reading(value=codes), SeededRandom(0), choice))


def test_every_step_of_a_walk_is_about_the_same_code_and_every_code_is_as_likely() -> None:
    question = asking(Deployment())
    steps = [step(question, 0, index) for index in range(3)]
    whole = Counter[str]()
    for device in range(1_000):
        choice = choice_of(device.to_bytes(32), question.question_id, 0)
        first, second, third = (told(one, SEVERAL, choice) for one in steps)
        whole[third] += 1
        number = number_of(third)
        assert (first, second) == (DTC.label(number >> 12, 4), DTC.label(number >> 6, 10))

    assert set(whole) == SEVERAL
    assert stats.chisquare(list(whole.values())).pvalue > 1e-9


def test_another_walk_question_or_device_chooses_anew() -> None:
    seeds = {
        choice_of(secret, QuestionId(bytes([question]) * 32), walk)
        for secret in (SECRET, SECRET[::-1])
        for question in (1, 2)
        for walk in (0, 1)
    }
    assert len(seeds) == 8
    assert {len(seed) for seed in seeds} == {32}
    assert choice_of(SECRET, QUESTION_ID, 7) == choice_of(SECRET, QUESTION_ID, 7)


def test_a_code_that_comes_or_goes_changes_nothing_unless_it_is_the_one() -> None:
    last = step(asking(Deployment()), 0, 2)
    for device in range(40):
        choice = choice_of(device.to_bytes(32), QUESTION_ID, 0)
        one = told(last, SEVERAL, choice)
        for other in SEVERAL - {one}:
            assert told(last, SEVERAL - {other}, choice) == one
        assert told(last, frozenset({one}), choice) == one
        assert told(last, SEVERAL - {one}, choice) != one
        # The same codes in another spelling are the same codes.
        assert told(last, frozenset(map(str.lower, SEVERAL)) | SEVERAL, choice) == one


async def test_a_device_walks_twice_to_one_of_its_codes_each_time(tmp_path: Path) -> None:
    world = Deployment()
    question = asking(world)
    steps = [step(question, walk, index) for walk in (0, 1) for index in range(3)]
    releases = {}
    for one in steps:
        assert isinstance(one.domain, Prefixes)
        busy = sorted({number_of(code) >> 16 - one.domain.bits for code in SEVERAL})
        releases[one.window_id] = released(world, one, *busy)
    device = driven(world, tmp_path, question, releases, truth=SEVERAL)

    await device.answer()

    found = [label(one, said(world, one)) for one in steps]
    for first, second, third in (found[:3], found[3:]):
        assert third in SEVERAL
        assert (first, second) == (DTC.label(number_of(third) >> 12, 4), DTC.label(number_of(third) >> 6, 10))


@pytest.mark.parametrize(
    ("reading", "name", "fault"),
    [
        ("P0301", "P0301", ""),
        ("p0301", "P0301", ""),
        (frozenset({"U0100"}), "U0100", ""),
        (frozenset(), "none", ""),
        (None, "none", ""),
        ("P0999", "none", ""),
        ("P0301-1F", "none", "a text in it is no code of the form 'dtc'"),
        (frozenset({"U0100", "?"}), "U0100", "a text in it is no code of the form 'dtc'"),
        (301, "none", "it is a number, and the question asks for a text"),
        (True, "none", "it is a truth value, and the question asks for a text"),
        ((1, 2), "none", "it is a position, and the question asks for a text"),
    ],
)
def test_what_is_no_code_is_none_and_its_owner_is_told(reading: object, name: str, fault: str) -> None:
    last = step(asking(Deployment()), 0, 2)
    found = Reading(value=reading)  # type: ignore[arg-type]

    assert label(last, truth_of(last, found, SeededRandom(0), SECRET)) == name
    assert fault_of(found, last.domain, several=False) == fault
    assert "0301" not in fault


def test_a_list_of_values_is_a_fault_where_one_is_asked_for() -> None:
    names = Categories(names=("red", "blue"))
    fault = "it is a list of several values, and the question takes one"

    assert fault_of(Reading(value=frozenset({"red", "blue"})), names, several=False) == fault
    assert fault_of(Reading(value=frozenset({"red", "blue"})), names, several=True) == ""
    assert fault_of(Reading(value=frozenset({"red"})), names, several=False) == ""


@pytest.mark.parametrize(
    ("text", "codes"),
    [('["P0301", "U0100"]', {"P0301", "U0100"}), ("[]", set()), ('["P0301"]', {"P0301"}), ("P0301", "P0301")],
)
def test_a_file_holds_one_code_or_a_list_of_them(tmp_path: Path, text: str, codes: object) -> None:
    (tmp_path / "codes.json").write_text(text)

    assert FileSource(tmp_path / "codes.json")() == codes
    (tmp_path / "codes.json").write_text('["P0301", 4]')
    with pytest.raises(SignalFault):
        FileSource(tmp_path / "codes.json")()


def test_a_private_code_is_not_told_however_it_is_spelled() -> None:
    private = PrivatePlaces({"Codes": PrivateSignal(values=frozenset({"p0301"}))})

    assert private.shown("Codes", frozenset({"P0301", "p0301", "U0100"})) == frozenset({"U0100"})
    assert private.shown("Codes", "P0301") is None

"""The list of attacks, the tests it names and the page are the same, and a verdict says what the tests said."""

import ast
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.attack.suite import PAGE, ROOT, Attack, Verdict, ids_of, page, read_attacks, tried

ATTACKS = read_attacks()
ONE = Attack(
    id="H99",
    who="a device",
    does="tries",
    holds="nothing happens",
    tests=("tests/attack/test_suite.py::test_one", "tests/attack/test_suite.py::test_two"),
)


def found_in(path: Path) -> set[str]:
    """Return the tests of a module as rows name them."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = {node.name for node in ast.parse(path.read_text()).body if isinstance(node, kinds)}
    return {f"{path.relative_to(ROOT)}::{name}" for name in names if name.startswith("test_")}


def test_every_test_that_a_row_names_exists() -> None:
    named = {name for one in ATTACKS for name in one.tests}

    assert [name for name in sorted(named) if name not in found_in(ROOT / name.partition("::")[0])] == []


def test_everything_that_once_worked_is_in_the_list() -> None:
    assert {f"K{number}" for number in range(1, 14)} <= {one.id for one in ATTACKS}


def test_every_test_of_this_folder_is_an_attack_of_the_list() -> None:
    modules = [path for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__)]
    named = {name for one in ATTACKS for name in one.tests}

    assert len(modules) > 1
    assert set().union(*map(found_in, modules)) - named == set()


def test_the_page_shows_the_attacks_of_the_list_in_their_order_and_all_of_them_held() -> None:
    text = PAGE.read_text()

    assert ids_of(text) == [one.id for one in ATTACKS], "run `make attack`: it writes docs/attacks.md"
    assert [one.id for one in ATTACKS if one.does not in text or any(name not in text for name in one.tests)] == []
    assert Verdict.BROKEN not in text


def case(name: str, inside: str = "") -> ElementTree.Element:
    return ElementTree.fromstring(f'<testcase classname="tests.attack.test_suite" name="{name}">{inside}</testcase>')


@pytest.mark.parametrize(
    ("cases", "verdict", "figure"),
    [
        ([case("test_one"), case("test_two[a]"), case("test_two[b]")], Verdict.HELD, ""),
        (
            [
                case("test_one", '<properties><property name="figure" value="3 ms"/></properties>'),
                case("test_two", '<properties><property name="figure" value="0 of 4"/></properties>'),
            ],
            Verdict.HELD,
            "3 ms; 0 of 4",
        ),
        (
            [case("test_one")]
            + [
                case(f"test_two[{n}]", '<properties><property name="figure" value="8 of 8"/></properties>')
                for n in "ab"
            ],
            Verdict.HELD,
            "8 of 8 (2 times)",
        ),
        ([case("test_one"), case("test_two[a]"), case("test_two[b]", "<failure/>")], Verdict.BROKEN, ""),
        ([case("test_one"), case("test_two", "<error/>")], Verdict.BROKEN, ""),
        ([case("test_one"), case("test_two", '<skipped message="no mosquitto"/>')], Verdict.NOT_TRIED, "no mosquitto"),
        ([case("test_one")], Verdict.NOT_TRIED, "its tests did not run"),
        ([case("test_one"), case("test_two_more")], Verdict.NOT_TRIED, "its tests did not run"),
    ],
)
def test_an_attack_is_held_only_if_all_its_tests_ran_and_passed(
    cases: list[ElementTree.Element], verdict: Verdict, figure: str
) -> None:
    found = tried(ONE, cases)

    assert (found.verdict, found.figure) == (verdict, figure)
    assert f"| {found.outcome} |" in page([ONE], {ONE.id: found})
    assert found.outcome == (f"{verdict}: {figure}" if figure else verdict)


@pytest.mark.parametrize(
    "change", [{"id": "X1"}, {"id": "K0"}, {"who": "somebody"}, {"does": ""}, {"tests": ()}, {"tests": ("tests/a.py",)}]
)
def test_a_row_that_cannot_be_is_refused(change: dict[str, object]) -> None:
    fields = {name: getattr(ONE, name) for name in ("id", "who", "does", "holds", "tests")}

    with pytest.raises(ValueError, match=r"id|who|does|tests"):
        Attack(**{**fields, **change})

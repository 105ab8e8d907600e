"""The table of golden groups: every entry names a public function that takes its arguments, and no other spelling."""

import inspect

import pytest
from fleetcount_evidence.golden.groups import Call, row_group, table
from fleetcount_evidence.golden.rows import Fields


def calls() -> list[str]:
    """Return every call that the table spells."""
    rows = [text for answers in table()["rows"].values() for text in answers.values()]
    return [*rows, *table()["matrices"].values(), *table()["questions"].values()]


@pytest.mark.parametrize("text", calls())
def test_every_entry_names_a_public_function_its_arguments_and_their_kinds(text: str) -> None:
    call = Call.of(text)

    inspect.signature(call.function).bind(*call.arguments)
    assert not call.function.__name__.startswith("_")
    kinds = [one[0] for one in call.arguments if not isinstance(one, int)]
    assert [kind for kind in kinds if not callable(getattr(Fields, kind, None)) or kind.startswith("_")] == []


@pytest.mark.parametrize("text", ["", "json.loads(raw *)", "fleetcount_mechanisms.renyi.pure_rho", "pure_rho(real a)"])
def test_what_is_no_call_of_ours_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a call"):
        Call.of(text)


def test_a_dot_in_the_name_of_a_group_is_a_dot() -> None:
    assert row_group("kov.inverse") is not None
    assert row_group("kovxinverse") is None
    assert row_group("geo.remap_uniform_abs_n10_a.5") is not None

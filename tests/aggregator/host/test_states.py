"""The one table of a task's states."""

from itertools import product

import pytest
from fleetcount_aggregator.host.states import FINAL_STATES, TRANSITIONS, State, StateConflictError, check_move

ALLOWED = {
    ("announced", "collecting"),
    ("announced", "agreeing"),
    ("announced", "aborted"),
    ("collecting", "agreeing"),
    ("collecting", "aborted"),
    ("agreeing", "releasing"),
    ("agreeing", "released"),
    ("agreeing", "aborted"),
    ("releasing", "released"),
    ("releasing", "aborted"),
    ("aborted", "released"),
}


@pytest.mark.parametrize(("old", "new"), list(product(State, State)))
def test_a_move_is_possible_iff_the_table_lists_it(old: State, new: State) -> None:
    if (old.value, new.value) in ALLOWED:
        check_move(old, new)
    else:
        with pytest.raises(StateConflictError):
            check_move(old, new)


def test_no_path_leads_back_but_to_a_release() -> None:
    order = list(State)

    moves = [(old, new) for old, following in TRANSITIONS.items() for new in following]
    assert all(order.index(new) > order.index(old) for old, new in moves if new is not State.RELEASED)
    assert TRANSITIONS[State.RELEASED] == frozenset()
    assert {State.RELEASED, State.ABORTED} == FINAL_STATES

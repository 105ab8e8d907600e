"""The one table of a window's states."""

from itertools import product

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


def is_possible(old: State, new: State) -> bool:
    try:
        check_move(old, new)
    except StateConflictError:
        return False
    return True


def test_a_move_is_possible_iff_the_table_lists_it() -> None:
    possible = {(old.value, new.value) for old, new in product(State, State) if is_possible(old, new)}

    assert possible == ALLOWED


def test_no_path_leads_back_but_to_a_release() -> None:
    order = list(State)

    moves = [(old, new) for old, following in TRANSITIONS.items() for new in following]
    assert all(order.index(new) > order.index(old) for old, new in moves if new is not State.RELEASED)
    assert TRANSITIONS[State.RELEASED] == frozenset()
    assert {State.RELEASED, State.ABORTED} == FINAL_STATES

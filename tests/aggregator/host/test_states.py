"""The one table of a window's states."""

from itertools import product

from fleetcount_aggregator.host.states import FINAL_STATES, TRANSITIONS, StateConflictError, check_move
from fleetcount_protocol.messages import WindowState

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


def is_possible(old: WindowState, new: WindowState) -> bool:
    try:
        check_move(old, new)
    except StateConflictError:
        return False
    return True


def test_a_move_is_possible_iff_the_table_lists_it() -> None:
    possible = {(old.value, new.value) for old, new in product(WindowState, WindowState) if is_possible(old, new)}

    assert possible == ALLOWED


def test_no_path_leads_back_but_to_a_release() -> None:
    order = list(WindowState)

    moves = [(old, new) for old, following in TRANSITIONS.items() for new in following]
    assert all(order.index(new) > order.index(old) for old, new in moves if new is not WindowState.RELEASED)
    assert TRANSITIONS[WindowState.RELEASED] == frozenset()
    assert {WindowState.RELEASED, WindowState.ABORTED} == FINAL_STATES

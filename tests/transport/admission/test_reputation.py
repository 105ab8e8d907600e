"""A memory of names is bounded and ends by itself."""

from fleetcount_transport.admission.reputation import _MOST, Remembered


def test_the_oldest_name_is_forgotten_for_the_next_and_each_after_its_time() -> None:
    now = 0.0
    names = Remembered[int](10, lambda: now)
    for number in range(_MOST):
        names.note(number)
    names.note(0)
    names.note(_MOST)

    assert (0 in names, 1 in names, _MOST in names, len(names._until)) == (True, False, True, _MOST)
    names.forget(0)
    now = 10.0
    assert 0 not in names
    assert _MOST not in names

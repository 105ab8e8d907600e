"""What is due is taken once, at its earliest moment."""

from fleetcount_aggregator.host.moment import DueQueue


def test_only_what_is_due_is_taken_and_only_once() -> None:
    agenda: DueQueue[bytes] = DueQueue()
    for moment, key in ((30, b"c"), (10, b"a"), (20, b"b")):
        agenda.put(moment, key)

    assert agenda.take(9) == []
    assert agenda.take(20) == [b"a", b"b"]
    assert agenda.take(29) == []
    assert agenda.take(30) == [b"c"]


def test_the_earlier_of_two_moments_counts() -> None:
    agenda: DueQueue[bytes] = DueQueue()
    for moment in (20, 10, 30):
        agenda.put(moment, b"a")

    assert agenda.take(10) == [b"a"]
    assert agenda.take(100) == []

    agenda.put(40, b"a")
    assert agenda.take(40) == [b"a"]

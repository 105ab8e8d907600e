"""Shares, bytes and faults: each identity has its own, the next one has room, and everything shed is counted."""

from collections import Counter
from contextlib import ExitStack, suppress

import pytest
from fleetcount_transport.admission.admission import Admission, AdmissionTable, BusyError, Shed
from fleetcount_transport.admission.identity import LOCAL, Identity
from fleetcount_transport.admission.reputation import Reputation

A, B = Identity(b"a"), Identity(b"b")


class Here:
    """An admission with a clock to be set."""

    def __init__(self, limits: AdmissionTable) -> None:
        self.now = 0.0
        self.shed = Counter[Shed]()
        self.admission = Admission(limits, lambda reason: self.shed.update([reason]), clock=lambda: self.now)


def calls(here: Here, held: ExitStack, who: Identity, most: int) -> int:
    """Return how many calls of `most` one identity gets, and hold them."""
    for number in range(most):
        try:
            held.enter_context(here.admission.call(who))
        except BusyError:
            return number
    return most


def test_one_identity_has_its_calls_and_no_more_and_gets_them_again() -> None:
    here = Here(AdmissionTable(calls_each=3))
    with ExitStack() as held:
        assert calls(here, held, A, 10) == 3
        assert calls(here, held, B, 2) == 2
    with ExitStack() as held:
        assert calls(here, held, A, 10) == 3
    assert here.shed == {Shed.CALLS: 2}
    assert here.admission.callers == 0


@pytest.mark.parametrize(("hostile", "least"), [(1, 4), (16, 4), (1000, 1)])
def test_however_many_take_all_they_get_there_is_room_for_the_next(hostile: int, least: int) -> None:
    here = Here(AdmissionTable(calls=4096, calls_each=256))
    with ExitStack() as held:
        for number in range(hostile):
            calls(here, held, Identity(b"hostile-%d" % number), 10_000)

        for number in range(100):
            assert calls(here, held, Identity(b"honest-%d" % number), 4) >= least


def test_bytes_are_shared_out_and_something_alone_always_fits() -> None:
    here = Here(AdmissionTable(bytes_in_memory=1 << 20, bytes_each=1 << 20))
    with here.admission.hold(A, 5 << 20), pytest.raises(BusyError):
        here.admission.hold(B, 1).__enter__()
    with here.admission.hold(A, 1 << 18), here.admission.hold(B, 1 << 18), pytest.raises(BusyError) as refused:
        here.admission.hold(A, 1 << 17).__enter__()
    assert refused.value.reason is Shed.BYTES
    assert here.shed == {Shed.BYTES: 2}


def test_too_many_failed_signatures_shut_one_identity_out_for_a_while() -> None:
    here = Here(AdmissionTable(faults_each=3, faults_s=60))
    carried, other = Identity(b"relay", b"bad"), Identity(b"relay", b"good")
    here.admission.failed(carried, 2)
    here.admission.check(carried)
    here.now = 20
    here.admission.failed(carried)

    with pytest.raises(BusyError) as refused:
        here.admission.call(carried).__enter__()
    here.admission.check(other)
    here.admission.check(Identity(b"relay"))

    assert (refused.value.reason, refused.value.retry_after_s) == (Shed.FAULTS, 40)
    here.now = 60
    here.admission.check(carried)
    here.admission.failed(carried, 2)
    here.admission.check(carried)
    assert here.shed == {Shed.FAULTS: 1}


def test_a_thousand_new_identities_have_one_budget_and_one_failure_each() -> None:
    here = Here(AdmissionTable(faults_each=8, faults_s=60, faults_unknown=20))
    new = [Identity(b"%d" % number) for number in range(30)]
    here.admission.held(A)
    for one in (*new, A, A):
        here.admission.failed(one)

    refused = 0
    for one in new:
        with suppress(BusyError):
            here.admission.check(one)
            continue
        refused += 1
    here.admission.check(A)
    here.admission.check(Identity(b"next"))

    assert refused == len(new)
    assert here.admission.reputation(new[0]) is Reputation.FAILED
    assert here.admission.reputation(Identity(b"next")) is Reputation.NEW
    here.now = 60
    here.admission.check(new[0])
    assert here.admission.reputation(new[0]) is Reputation.NEW


def test_who_held_is_known_until_too_many_of_its_signatures_fail() -> None:
    here = Here(AdmissionTable(faults_each=3, faults_s=60))
    here.admission.held(A)
    assert [here.admission.reputation(one) for one in (A, B, LOCAL)] == [
        Reputation.KNOWN,
        Reputation.NEW,
        Reputation.KNOWN,
    ]

    here.admission.failed(A, 2)
    assert here.admission.knows(A)
    here.admission.failed(A)

    assert here.admission.reputation(A) is Reputation.FAILED
    here.admission.held(B)
    here.now = 86_400
    assert not here.admission.knows(B)


def test_a_message_that_is_refused_gives_its_call_back() -> None:
    here = Here(AdmissionTable(bytes_in_memory=1 << 20, bytes_each=1 << 20))
    with here.admission.hold(B, 1 << 20), pytest.raises(BusyError), here.admission.admit(A, 1):
        raise AssertionError("admitted")
    assert here.admission.callers == 0

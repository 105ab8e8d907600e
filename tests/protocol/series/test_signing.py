"""A series is believed only with the signatures of all; a window only if it follows from such a series."""

from dataclasses import replace

import pytest
from fleetcount_protocol.errors import SignatureError, TaskError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.series.derive import window_task
from fleetcount_protocol.series.series import SignedSeries
from fleetcount_protocol.series.signing import sign_series, verify_signed_series, verify_window
from fleetcount_protocol.task.task import SignedTask

from tests.support.protocol_samples import signing_key, trusted
from tests.support.series_samples import sampling_series, sign_everywhere

SERIES = sampling_series(3)
SIGNED = sign_everywhere(SERIES)
WINDOW = window_task(SERIES, 17)
TRUSTED = trusted(WINDOW)


def window(**changes: object) -> SignedTask:
    return SignedTask(task=replace(WINDOW, **changes), signatures=())  # type: ignore[arg-type]


def test_signatures_of_all_are_accepted_and_stand_for_a_window() -> None:
    verify_signed_series(SIGNED, TRUSTED)
    verify_window(window(), SIGNED, TRUSTED)


@pytest.mark.parametrize("position", [0, 1, 2])
def test_every_signature_is_needed(position: int) -> None:
    other = sign_series(sampling_series(3, name="Another"), signing_key(position))
    for wrong in (b"", bytes(64), other, SIGNED.signatures[position - 1]):
        signatures = tuple(wrong if place == position else one for place, one in enumerate(SIGNED.signatures))
        spoilt = SignedSeries(series=SERIES, signatures=signatures)
        with pytest.raises(SignatureError, match=SERIES.aggregators[position].aggregator_id):
            verify_signed_series(spoilt, TRUSTED)
        with pytest.raises(SignatureError, match=SERIES.aggregators[position].aggregator_id):
            verify_window(window(), spoilt, TRUSTED)
    with pytest.raises(SignatureError, match="2 signatures for 3"):
        verify_signed_series(replace(SIGNED, signatures=SIGNED.signatures[:2]), TRUSTED)


def test_aggregators_are_trusted_under_this_key_and_operator() -> None:
    known = dict(TRUSTED)
    del known[AggregatorId("beta")]
    with pytest.raises(TaskError, match="beta is not among the trusted"):
        verify_signed_series(SIGNED, known)
    one = {name: replace(party, operator="Operator alpha") for name, party in TRUSTED.items()}
    with pytest.raises(TaskError, match="trusted under another operator"):
        verify_window(window(), SIGNED, one)


def test_a_window_is_believed_in_these_very_bytes_only() -> None:
    for changes in (
        {"min_batch_size": 11},
        {"expiry": WINDOW.expiry + 60},
        {"round_one_opens": WINDOW.round_one_opens + 60},
        {"name": "Another"},
    ):
        with pytest.raises(TaskError, match="is not what window 17 of series"):
            verify_window(window(**changes), SIGNED, TRUSTED)
    assert WINDOW.series is not None
    for index in (16, 720):
        with pytest.raises(TaskError, match=f"is not what window {index}"):
            verify_window(window(series=replace(WINDOW.series, index=index)), SIGNED, TRUSTED)


def test_a_window_belongs_to_this_series_and_has_no_signatures() -> None:
    other = sampling_series(3, name="Another")
    with pytest.raises(TaskError, match="is no window of series"):
        verify_window(window(), sign_everywhere(other), TRUSTED)
    with pytest.raises(TaskError, match="has 3 signatures, allowed for a window: none"):
        verify_window(SignedTask(task=WINDOW, signatures=SIGNED.signatures), SIGNED, TRUSTED)

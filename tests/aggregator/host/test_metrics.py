"""What the metrics say of reports: that something was refused, and neither how often nor when."""

from fleetcount_aggregator.host.metrics import Metrics, _Refused
from fleetcount_protocol.errors import RejectReason


def shown(refused: _Refused) -> set[str]:
    [family] = refused.collect()
    assert {sample.labels["reason"] for sample in family.samples} == {one.label for one in RejectReason}
    return {sample.labels["reason"] for sample in family.samples if sample.value}


def test_a_reason_is_shown_for_the_hour_after_the_one_it_was_given_in() -> None:
    time = [100 * 3600.0 + 1800]
    refused = _Refused(lambda: time[0])
    for _ in range(3):
        refused.note(RejectReason.OVER_QUOTA)
    assert shown(refused) == set()
    time[0] += 1800
    assert shown(refused) == {"over_quota"}
    refused.note(RejectReason.TOO_LATE)
    time[0] += 3599
    assert shown(refused) == {"over_quota"}
    time[0] += 1
    assert shown(refused) == {"too_late"}
    time[0] += 2 * 3600
    assert shown(refused) == set()


def test_one_refusal_more_changes_nothing_on_the_page() -> None:
    metrics = Metrics()
    before = metrics.render()
    for _ in range(3):
        metrics.refused(RejectReason.OVER_QUOTA)

    assert metrics.render() == before

"""The conditions that a console shows are the shipped alerts', word for word, and hold when theirs do."""

import re
from pathlib import Path

import pytest
import yaml
from fleetcount_site.console.alerts import DOWN, NAMES, RULES, Watch
from fleetcount_site.console.history import KEPT_S, History, samples

SHIPPED = Path(__file__).parents[3] / "deploy" / "monitoring" / "alerts.yml"
ELSEWHERE = {
    "FleetcountNoCoordinator": "of several processes; a console asks one",
    "FleetcountSlotNotConnected": "of several processes; a console asks one",
    "FleetcountRelayCutOff": "of a relay",
}
UNITS = {"s": 1, "m": 60, "h": 3600}


def seconds(text: str) -> float:
    return float(text[:-1]) * UNITS[text[-1]]


def test_every_shipped_alert_is_shown_as_it_is_written() -> None:
    [group] = yaml.safe_load(SHIPPED.read_text())["groups"]
    shipped = {rule["alert"]: rule for rule in group["rules"]}

    rules = {rule.name: rule for rule in (DOWN, *RULES)}

    assert list(rules) == [name for name in shipped if name not in ELSEWHERE]
    for name, rule in rules.items():
        there = shipped[name]
        assert rule.expression in there["expr"].split(" or "), name
        assert rule.summary == there["annotations"]["summary"], name
        assert rule.severity == there["labels"]["severity"], name
        assert rule.wait_s == seconds(there.get("for", "0s")), name
        window = re.search(r"\[(\w+)\]", there["expr"])
        assert rule.over_s == (seconds(window[1]) if window else 0) <= KEPT_S, name


def told(history: History, moment: float, text: str) -> None:
    history.add(moment, samples(text.encode(), NAMES))


@pytest.mark.parametrize(
    ("name", "well", "ill"),
    [
        ("FleetcountNotReady", 'fleetcount_ready{check="peers"} 1', 'fleetcount_ready{check="peers"} 0'),
        (
            "FleetcountCertificateEnds",
            'fleetcount_certificate_days_left{certificate="own"} 14',
            'fleetcount_certificate_days_left{certificate="own"} 13.9',
        ),
        ("FleetcountDiskFills", "fleetcount_disk_free_bytes 1073741824", "fleetcount_disk_free_bytes 1073741823"),
        (
            "FleetcountClockSkew",
            'fleetcount_clock_skew_seconds{peer="beta"} -5',
            'fleetcount_clock_skew_seconds{peer="beta"} -6',
        ),
        (
            "FleetcountWindowAborted",
            'fleetcount_window_moves_total{state="released"} 2',
            'fleetcount_window_moves_total{state="aborted"} 1',
        ),
        (
            "FleetcountSheds",
            'fleetcount_shed_total{reason="busy"} 1500',
            'fleetcount_shed_total{reason="busy"} 1501',
        ),
    ],
)
def test_a_condition_holds_beyond_its_bound_alone(name: str, well: str, ill: str) -> None:
    for text, expected in ((well, []), (ill, [name])):
        history = History()
        told(history, 0, "")
        told(history, 60, text + "\n")

        found = Watch("alpha").standings(history, 60, answers=True)

        assert [one.rule.name for one in found if one.firing] == expected, text


def test_a_condition_counts_after_its_time_and_is_forgotten_when_it_ends() -> None:
    history, watch = History(), Watch("alpha")
    raised = []
    for moment, value in ((0, 0), (299, 0), (300, 0), (310, 1), (320, 0)):
        told(history, moment, f'fleetcount_peer_reachable{{peer="beta"}} {value}\n')
        found = {one.rule.name: one for one in watch.standings(history, moment, answers=True)}
        raised.append(found["FleetcountPeerUnreachable"].counts)

    assert raised == [False, False, True, False, False]
    [firing] = found["FleetcountPeerUnreachable"].firing
    assert firing.sentence == "alpha does not reach beta; after [limits] give_up_s windows of both are aborted"


def test_where_nothing_answers_that_alone_is_known() -> None:
    history, watch = History(), Watch("alpha")
    told(history, 0, "fleetcount_disk_free_bytes 1\n")

    found = [one for one in watch.standings(history, 1, answers=False) if one.firing]

    assert [(one.rule.name, one.counts) for one in found] == [("FleetcountDown", False)]
    assert found[0].firing[0].sentence == "alpha does not answer: the process has ended, or hangs"


def test_a_counter_that_begins_anew_has_grown_by_what_it_shows() -> None:
    history = History()
    for moment, value in ((0, 10), (20, 12), (40, 3), (60, 3)):
        told(history, moment, f"fleetcount_store_errors_total {value}\n")

    assert history.increase("fleetcount_store_errors_total", 3600) == {(): 5}
    assert history.increase("fleetcount_store_errors_total", 20) == {(): 0}


def test_what_is_remembered_of_counters_is_bounded() -> None:
    history = History()
    for moment in range(0, 3 * 3600, 3):
        told(history, moment, f"fleetcount_store_errors_total {moment}\n")

    assert history.seen_s() <= KEPT_S
    assert len(history._steps) <= KEPT_S / 10
    assert history.increase("fleetcount_store_errors_total", 600)[()] == pytest.approx(600, abs=30)


def test_a_page_that_is_not_one_of_metrics_is_refused() -> None:
    for page in (b"<html>", b"\xff", b"fleetcount_ready{check=1\n"):
        with pytest.raises(ValueError, match=r"invalid|decode|Invalid|could not"):
            samples(page, NAMES)
    many = "".join(f'fleetcount_ready{{check="{number}"}} 1\n' for number in range(2_001))
    with pytest.raises(ValueError, match="more than 2000"):
        samples(many.encode(), NAMES)

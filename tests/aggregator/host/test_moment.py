"""A clock that a process starts with is confirmed by its store, its peers or its operator, and by nothing else."""

import ast
from pathlib import Path

import pytest
from fleetcount_aggregator.host.moment import Moments, Skew
from fleetcount_protocol.ids import AggregatorId

HERE, SKEW_S = 1_800_000_000.0, 30.0
BETA, GAMMA = AggregatorId("beta"), AggregatorId("gamma")
SOURCES = Path(__file__).parents[3] / "aggregator" / "src" / "fleetcount_aggregator"


class Started:
    """What a process knows that starts with a clock so many seconds ahead of what its store remembers."""

    def __init__(self, ahead_s: float | None, *, is_right: bool = False) -> None:
        self.passed_s = 0.0
        self.moments = Moments(lambda: HERE + self.passed_s, SKEW_S)
        self.moments.begin(None if ahead_s is None else HERE - ahead_s, [BETA, GAMMA], is_right=is_right)

    @property
    def confirmed(self) -> bool:
        return self.moments.of().is_confirmed


@pytest.mark.parametrize(
    ("ahead_s", "confirmed"),
    [(None, True), (0, True), (30, True), (31, False), (400 * 86_400, False), (-30, True), (-31, False)],
)
def test_a_clock_that_goes_on_from_the_store_is_confirmed(ahead_s: float | None, confirmed: bool) -> None:
    assert Started(ahead_s).confirmed is confirmed
    assert Started(ahead_s, is_right=True).confirmed


def test_until_then_nothing_is_past_and_only_the_time_since_the_start_is_sure() -> None:
    started = Started(3600)
    started.passed_s = 5

    moment = started.moments.of()

    assert (moment.now, moment.is_confirmed, moment.sure) == (HERE + 5, False, HERE - 3595)
    assert not moment.is_past(HERE - 10_000)
    assert "the clock says 2027-01-15T08:00:05Z, and this store was last acted on at 2027-01-15T07:00:00Z" in (
        started.moments.complaint()
    )


def test_all_peers_confirm_it_and_some_only_for_what_is_between_them() -> None:
    started = Started(3600)
    started.moments.skews[BETA] = Skew(-25, 5)
    assert not started.confirmed
    assert started.moments.of([BETA]).is_confirmed
    assert started.moments.of([BETA]).is_past(HERE)
    assert not started.moments.of([BETA, GAMMA]).is_confirmed
    assert not started.moments.of([]).is_confirmed

    started.moments.skews[GAMMA] = Skew(25, 6)  # It may be 31 s off.
    assert not started.confirmed
    started.moments.skews[GAMMA] = Skew(25, 5)
    assert started.confirmed

    # Once confirmed it goes on by the time that passes, whatever a peer's clock says later.
    started.moments.skews[GAMMA] = Skew(3600, 0)
    assert started.confirmed
    assert started.moments.complaint() == ""


def test_another_process_of_the_same_aggregator_confirms_it_through_the_store() -> None:
    started = Started(3600)
    started.passed_s = 100
    started.moments.hear(HERE - 3500)
    assert not started.confirmed
    started.moments.hear(HERE + 95)
    assert started.confirmed


ALLOWED = {
    "host/host.py": "gives the clock to it",
    "process/app.py": "makes the clock, which the deny list is compared with too",
    "transport/grpc_server.py": "as a default, where no aggregator gives its moment",
    "storage/postgres.py": "compares the machine's clock with the server's, and decides nothing by it",
}


def test_nothing_else_asks_the_clock() -> None:
    asked = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Attribute):
                continue
            owner = ast.unparse(node.value)
            if (node.attr == "now" and owner.endswith("clock")) or (owner, node.attr) == ("time", "time"):
                asked.add(path.relative_to(SOURCES).as_posix())
            if (owner, node.attr) in {("datetime", "now"), ("datetime", "utcnow"), ("date", "today")}:
                asked.add(path.relative_to(SOURCES).as_posix())

    assert asked == set(ALLOWED)

"""A demo's page without a demo: a question of six squares, a window that is signed, and a record with its
signatures.
"""

from collections.abc import Iterator
from fractions import Fraction

import pytest
from fleetcount_mechanisms.noise import TwoSidedNoise
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.release.record import Cell, ReleaseRecord, sign_record
from fleetcount_protocol.window.domain import SquareGrid
from fleetcount_protocol.window.window import Window
from fleetcount_simulator.network.events import Held, Refused, Signed
from fleetcount_site.watch.events import WatchedQuestion
from fleetcount_site.watch.server import Shown, showing

from tests.support.protocol_samples import record, sampling_window, signing_key

READINGS = ((10.0, 10.0),) * 5 + ((300.0, 300.0),) * 3 + (None,) * 2
"""Five vehicles in value 1, three in value 5, two on no road."""


def question(window: Window) -> WatchedQuestion:
    """Return what a demo tells its page of a sampling window over a grid."""
    assert isinstance(window.domain, SquareGrid)
    assert isinstance(window.mechanism, SamplingDie)
    return WatchedQuestion(
        text="In which <cell> are you?",
        domain=window.domain,
        answer=window.mechanism,
        noise=TwoSidedNoise(Fraction(17, 10)),
        level=Fraction(19, 20),
        aggregators=len(window.aggregators),
        readings=READINGS,
    )


def run(shown: Shown, window: Window) -> None:
    """Tell the page of a run up to its last receipts."""
    shown.teller.asked(question(window))
    shown.teller.expected(question(window), 1)
    shown.teller.step("connecting", 10, 10)
    shown.teller.happened(Signed(window=window))
    shown.teller.happened(Held(first=(0, 1, 2, 5), every=(0, 1, 5)))
    shown.teller.happened(Refused(process="fleet-0", reasons={"too late": 2}))


@pytest.fixture
def window() -> Window:
    """Return a window."""
    return sampling_window()


@pytest.fixture
def released(window: Window) -> tuple[ReleaseRecord, tuple[bytes, ...]]:
    """Return a record of the window with plausible numbers, and both signatures."""
    numbers = [(4, 0, 14), (-12, 0, 0), (0, 0, 9), (0, 0, 9), (8, 1, 19), (4, 0, 14)]
    cells = tuple(
        Cell(value=value, label=window.label(value), raw=estimate // 4, estimate=Fraction(estimate), low=low, high=high)
        for value, (estimate, low, high) in enumerate(numbers, start=1)
    )
    made = record(window, cells=cells)
    return made, tuple(sign_record(made, signing_key(place)) for place in range(2))


@pytest.fixture
def shown() -> Iterator[Shown]:
    """Return a page that is served until the test's end."""
    with showing() as page:
        yield page

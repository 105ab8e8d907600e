"""The [schedule] table: one standing question, the noise its promise needs, and a refusal by name for all the rest."""

from fractions import Fraction

import pytest
from fleetcount_mechanisms.accounting.series_losses import series_losses
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.standing import Coin, StandingQuestion

from tests.simulator.scenario_doubles import SMALL, changed, scenario_of

PROMISED = changed(epsilon="")
ALONE = changed(epsilon="", sampling_rate="")
AGAIN = '\n[[attacker]]\nkind = "repeating-analyst"\n'
SERIES = '\n[schedule]\nwindows = 4\ncoin = "series"\nepsilon = 2\n'


def series_of(text: str) -> StandingQuestion:
    series = scenario_of(text).case(0).epochs.series
    assert series is not None
    return series


def test_a_series_is_read_with_its_schedule() -> None:
    text = SMALL + (
        '\n[schedule]\nwindows = 4\nevery_s = 43200\nstart_s = 3600\ncoin = "day"\njoins = 0.25\nleaves = "1/8"\n'
        'outages = ["0", "2-3"]\ndelta = "1/1000000"\ndevice_epsilon = 5\n'
    )

    case, series = scenario_of(text).case(0), series_of(text)

    assert (series.coin, series.shape.units, series.windows) == (Coin.DAY, (2, 2), 4)
    assert (series.joins, series.leaves, series.delta) == (Fraction(1, 4), Fraction(1, 8), Fraction(1, 10**6))
    assert series.outages == ((0, 0), (2, 3))
    assert case.epochs.count == 4
    assert case.epochs.device_epsilon == 5
    assert case.mechanism.noise_epsilon is not None
    assert series.epsilon is None


@pytest.mark.parametrize("noise", ["geometric", "gaussian"])
@pytest.mark.parametrize("kind", ["sampling", "direct"])
def test_the_promise_of_a_series_decides_the_noise(kind: str, noise: str) -> None:
    text = PROMISED.replace('"sampling"', f'"{kind}"').replace('sampling_rate = "1/4"', f'noise = "{noise}"') + SERIES
    case = scenario_of(text).case(0)
    series = series_of(text)

    whole = series_losses(case.design, series.shape, series.delta).whole_series
    assert Fraction(199, 100) < whole <= 2
    assert (case.mechanism.noise_variance is None) == (noise == "geometric")
    assert (series.coin is Coin.WINDOW) == (kind == "direct")  # Who sends the truth tosses no coin.


def test_a_promise_can_be_swept() -> None:
    text = PROMISED + SERIES.replace("epsilon = 2", "epsilon = [1, 4]")
    noises = [case.mechanism.noise_epsilon for case in map(scenario_of(text).case, range(2))]

    assert noises[0] is not None
    assert noises[1] is not None
    assert noises[0] < noises[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SMALL + SERIES + "\n[epochs]\ncount = 2\n", "epochs and series are both given; ask one by one or as a series"),
        (SMALL + SERIES, "epsilon and schedule.epsilon are both given"),
        (
            PROMISED + SERIES.replace('"series"\n', '"week"\n'),
            "schedule.coin is 'week'; allowed is 'window' or 'day' or",
        ),
        (PROMISED + SERIES.replace("windows = 4", "windows = 0"), "schedule.windows is 0; allowed is a whole number"),
        (
            PROMISED + SERIES.replace("windows = 4", "windows = 5"),
            "schedule.windows is 5; this population can be asked 4",
        ),
        (PROMISED + SERIES.replace("windows = 4\n", ""), "schedule.windows is missing"),
        (PROMISED + SERIES + 'outages = ["2-4"]\n', "schedule.outages has '2-4'; allowed are texts like \"100-123\""),
        (PROMISED + SERIES + 'outages = ["3-2"]\n', "schedule.outages has '3-2'"),
        (PROMISED + SERIES + "outages = [2]\n", "schedule.outages has 2"),
        (PROMISED + SERIES + 'outages = "2"\n', "schedule.outages is '2'; allowed is a list of at most 100 texts"),
        (PROMISED + SERIES + "joins = 2\n", "schedule.joins is 2; allowed is a number"),
        (PROMISED + SERIES + "every = 3600\n", "series.every is unknown"),
        (PROMISED + SERIES + "delta = 0.5\n", "schedule.delta is 0.5; allowed is a number"),
        (ALONE.replace('"sampling"', '"one-sided"') + SERIES, "kind is 'one-sided'; allowed is with schedule.epsilon"),
        (PROMISED + SERIES + AGAIN, "attacker[0].kind is 'repeating-analyst', which needs [epochs]"),
        (SMALL + AGAIN.replace("repeating-analyst", "tracker"), "is 'tracker', which needs [schedule]"),
        (SMALL + 'noise = "gaussian"\n', "noise is for a promise of the whole series; give schedule.epsilon too"),
        (SMALL + "noise_variance = 9\n", "epsilon and noise_variance are both given"),
        (PROMISED + "noise_variance = 0.1\n", "noise_variance is 0.1; allowed is a number"),
        (
            ALONE.replace('"sampling"', '"direct"') + SERIES.replace("epsilon = 2", 'epsilon = "1/1000"'),
            "noise cannot be used: the promise needs noise of a standard deviation of 1",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        scenario_of(text).case(0)

    assert message in str(refused.value)
    assert str(refused.value).startswith("study.toml")
    assert "\n" not in str(refused.value)

"""The [schedule] table: one standing question, the noise its promise needs, and a refusal by name for all the rest."""

from fractions import Fraction

import pytest
from fleetcount_mechanisms.accounting.question_losses import question_losses
from fleetcount_protocol.question.fields import Coin
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.standing import StandingQuestion

from tests.simulator.scenario_doubles import SMALL, changed, scenario_of

PROMISED = changed(epsilon="")
ALONE = changed(epsilon="", sampling_rate="")
AGAIN = '\n[[attacker]]\nkind = "repeating-analyst"\n'
QUESTION = '\n[schedule]\nwindows = 4\ncoin = "question"\nepsilon = 2\n'


def question_of(text: str) -> StandingQuestion:
    question = scenario_of(text).case(0).epochs.question
    assert question is not None
    return question


def test_a_question_is_read_with_its_schedule() -> None:
    text = SMALL + (
        '\n[schedule]\nwindows = 4\nevery_s = 43200\nstart_s = 3600\ncoin = "day"\njoins = 0.25\nleaves = "1/8"\n'
        'outages = ["0", "2-3"]\ndelta = "1/1000000"\ndevice_epsilon = 5\n'
    )

    case, question = scenario_of(text).case(0), question_of(text)

    assert (question.coin, question.shape.units, question.windows) == (Coin.DAY, (2, 2), 4)
    assert (question.joins, question.leaves, question.delta) == (Fraction(1, 4), Fraction(1, 8), Fraction(1, 10**6))
    assert question.outages == ((0, 0), (2, 3))
    assert case.epochs.count == 4
    assert case.epochs.device_epsilon == 5
    assert case.mechanism.noise_epsilon is not None
    assert question.epsilon is None


@pytest.mark.parametrize("noise", ["geometric", "gaussian"])
@pytest.mark.parametrize("kind", ["sampling", "direct"])
def test_the_promise_of_a_question_decides_the_noise(kind: str, noise: str) -> None:
    text = PROMISED.replace('"sampling"', f'"{kind}"').replace('sampling_rate = "1/4"', f'noise = "{noise}"') + QUESTION
    case = scenario_of(text).case(0)
    question = question_of(text)

    whole = question_losses(case.design, question.shape, question.delta).whole_question
    assert Fraction(199, 100) < whole <= 2
    assert (case.mechanism.noise_variance is None) == (noise == "geometric")
    assert (question.coin is Coin.WINDOW) == (kind == "direct")  # Who sends the truth tosses no coin.


def test_a_promise_can_be_swept() -> None:
    text = PROMISED + QUESTION.replace("epsilon = 2", "epsilon = [1, 4]")
    noises = [case.mechanism.noise_epsilon for case in map(scenario_of(text).case, range(2))]

    assert noises[0] is not None
    assert noises[1] is not None
    assert noises[0] < noises[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            SMALL + QUESTION + "\n[epochs]\ncount = 2\n",
            "epochs and schedule are both given; ask questions one by one, or one question in many windows",
        ),
        (SMALL + QUESTION, "epsilon and schedule.epsilon are both given"),
        (
            PROMISED + QUESTION.replace('"question"\n', '"week"\n'),
            "schedule.coin is 'week'; allowed is 'window' or 'day' or",
        ),
        (PROMISED + QUESTION.replace("windows = 4", "windows = 0"), "schedule.windows is 0; allowed is a whole number"),
        (
            PROMISED + QUESTION.replace("windows = 4", "windows = 5"),
            "schedule.windows is 5; this population can be asked 4",
        ),
        (PROMISED + QUESTION.replace("windows = 4\n", ""), "schedule.windows is missing"),
        (PROMISED + QUESTION + 'outages = ["2-4"]\n', "schedule.outages has '2-4'; allowed are texts like \"100-123\""),
        (PROMISED + QUESTION + 'outages = ["3-2"]\n', "schedule.outages has '3-2'"),
        (PROMISED + QUESTION + "outages = [2]\n", "schedule.outages has 2"),
        (PROMISED + QUESTION + 'outages = "2"\n', "schedule.outages is '2'; allowed is a list of at most 100 texts"),
        (PROMISED + QUESTION + "joins = 2\n", "schedule.joins is 2; allowed is a number"),
        (PROMISED + QUESTION + "every = 3600\n", "schedule.every is unknown"),
        (PROMISED + QUESTION + "delta = 0.5\n", "schedule.delta is 0.5; allowed is a number"),
        (
            ALONE.replace('"sampling"', '"one-sided"') + QUESTION,
            "kind is 'one-sided'; allowed is with schedule.epsilon",
        ),
        (PROMISED + QUESTION + AGAIN, "attacker[0].kind is 'repeating-analyst', which needs [epochs]"),
        (SMALL + AGAIN.replace("repeating-analyst", "tracker"), "is 'tracker', which needs [schedule]"),
        (SMALL + 'noise = "gaussian"\n', "noise is for a promise of the whole question; give schedule.epsilon too"),
        (SMALL + "noise_variance = 9\n", "epsilon and noise_variance are both given"),
        (PROMISED + "noise_variance = 0.1\n", "noise_variance is 0.1; allowed is a number"),
        (
            ALONE.replace('"sampling"', '"direct"') + QUESTION.replace("epsilon = 2", 'epsilon = "1/1000"'),
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

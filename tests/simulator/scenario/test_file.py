"""Scenario files: exact numbers, the grid of lists, and a named refusal with file, line and key for all the rest."""

from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount_mechanisms.noise import GaussianNoise
from fleetcount_simulator import cells, populations
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.scenario.file import MAX_BYTES, read_scenario
from fleetcount_simulator.scenario.grid import LIST_KEYS

from tests.simulator.scenario_doubles import SMALL, changed, make_even, scenario_of, small
from tests.support.refusals import said_by


def test_a_whole_file_is_read() -> None:
    scenario = small()
    case = scenario.case(0)

    assert (scenario.name, scenario.title, scenario.seed, scenario.runs) == ("small", "A small study", 7, 20)
    assert scenario.engine == "exact-law"
    assert len(scenario.plans) == 1
    assert case.mechanism.sampling_rate == Fraction(1, 4)
    assert case.population.devices == 300
    assert (case.aggregators, case.min_batch_size, case.level) == (2, 10, Fraction(95, 100))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1", Fraction(1, 10)),
        ('"0.1"', Fraction(1, 10)),
        ('"1/3"', Fraction(1, 3)),
        ("1e-3", Fraction(1, 1000)),
        ("0.30000000000000000000001", Fraction(30000000000000000000001, 10**23)),
    ],
)
def test_numbers_are_exact_and_never_floats(text: str, value: Fraction) -> None:
    assert small(sampling_rate=f"sampling_rate = {text}").case(0).mechanism.sampling_rate == value


def test_the_noise_for_a_loss_is_planned_by_the_number_of_values() -> None:
    two_cell = small().case(0).mechanism.noise_epsilon
    one_cell = scenario_of(SMALL.replace('"categories"', '"categories"\nvalues = 1')).case(0).mechanism.noise_epsilon

    assert two_cell == Fraction(1729362, 10**6)
    assert one_cell is not None
    assert one_cell > Fraction(1729362, 10**6)


@pytest.mark.parametrize("size", ['noise_variance = "662.25"', "noise_sd = 25.734"])
def test_gaussian_noise_is_given_by_its_variance_or_the_root(size: str) -> None:
    mechanism = small(epsilon=size).case(0).mechanism

    assert mechanism.noise == GaussianNoise(mechanism.noise_variance or Fraction(0))
    assert mechanism.noise_variance in (Fraction(2649, 4), Fraction(25734, 1000) ** 2)
    assert mechanism.noise_epsilon is None


def test_lists_make_a_grid_with_shared_axes_outermost() -> None:
    text = changed(devices="devices = [100, 200]", epsilon='epsilon = ["1/2", 1]') + "\n[faults]\nloss = [0, 0.1]\n"
    points = [dict(plan.point) for plan in scenario_of(text).plans]

    assert len(points) == 8
    assert points[0] == {"population.devices": "100", "faults.loss": "0", "mechanism.epsilon": "1/2"}
    assert points[1] == {"population.devices": "100", "faults.loss": "0", "mechanism.epsilon": "1"}
    assert points[-1] == {"population.devices": "200", "faults.loss": "0.1", "mechanism.epsilon": "1"}
    assert [plan.index for plan in scenario_of(text).plans] == list(range(8))


def test_mechanisms_have_axes_of_their_own() -> None:
    text = changed(epsilon="epsilon = [1, 2, 3]") + '\n[[mechanism]]\nkind = "k-ary"\nepsilon_local = [1, 2]\n'

    names = [plan.mechanism.name for plan in scenario_of(text).plans]

    assert names == ["sampling"] * 3 + ["k-ary"] * 2


def test_the_sweep_section_names_dotted_keys_quoted_or_not() -> None:
    quoted = scenario_of(SMALL.replace("devices = 300", "") + '\n[sweep]\n"population.devices" = [10, 20]\n')
    nested = scenario_of(SMALL.replace("devices = 300", "") + "\n[sweep]\npopulation.devices = [10, 20]\n")

    assert quoted.axes == nested.axes == ("population.devices",)
    assert [quoted.case(index).population.devices for index in (0, 1)] == [10, 20]


def test_a_sweep_can_name_one_mechanism_or_all() -> None:
    text = changed(epsilon="") + '\n[[mechanism]]\nname = "plain"\nkind = "direct"\n\n[sweep]\n'

    every = scenario_of(text + '"mechanism.epsilon" = [1, 2]\n')
    one = scenario_of(text.replace('"direct"', '"direct"\nepsilon = 1') + '"mechanism.sampling.epsilon" = [1, 2]\n')

    assert [plan.mechanism.name for plan in every.plans] == ["sampling", "sampling", "plain", "plain"]
    assert [plan.mechanism.name for plan in one.plans] == ["sampling", "sampling", "plain"]


@pytest.mark.parametrize("section", ["population", "question"])
def test_lists_by_nature_are_those_the_kinds_say(section: str) -> None:
    keys = (
        [key for kind in populations.KINDS for key in populations.keys_of(kind)]
        if section == "population"
        else [key for kind in cells.KINDS for key in cells.keys_of(kind)]
    )

    assert {key.name for key in keys if key.example.startswith("[")} == set(LIST_KEYS[section])


def test_attackers_keep_their_own_parameters_and_can_be_swept() -> None:
    text = SMALL + '\n[[attacker]]\nkind = "liars"\ndevices = [10, 100]\nstrategy = "spread"\n'
    scenario = scenario_of(text)

    assert scenario.axes == ("attacker.liars.devices",)
    assert dict(scenario.plans[1].attackers[0].parameters) == {"devices": "100", "strategy": "spread"}


def test_cases_with_equal_settings_share_their_population() -> None:
    scenario = small(epsilon="epsilon = [1, 2]")

    assert scenario.case(0).population is scenario.case(1).population


def test_faults_and_outages_are_read() -> None:
    faults = (
        '\n[faults]\nloss = "1/20"\nnaive = true\n[[faults.outage]]\naggregator = 1\nstep = "collecting"\nseconds = 5\n'
    )
    plan = scenario_of(SMALL + faults).plans[0]

    assert plan.faults.loss == Fraction(1, 20)
    assert plan.faults.outage == ((1, "collecting", Fraction(5)),)
    assert plan.faults.naive


def _line(key: str, line: str) -> str:
    return changed(**{key: line})


BAD = {
    "not TOML": ("name = 1 1\n", "line 1"),
    "unclosed table": (SMALL + "\n[faults\n", "study.toml is not TOML"),
    "a key twice": (SMALL + "\nepsilon = 2\n", "not TOML"),
    "too deep": ("a = " + "[" * 5000, "study.toml is not TOML"),
    "NUL": (SMALL + "\0", "NUL character"),
    "byte-order mark": ("\ufeff" + SMALL, "byte-order mark"),
    "long integer": ("seed = " + "9" * 5000, "too long"),
    "unknown top key": ("sead = 1\n" + SMALL, "line 1: sead is unknown; did you mean 'seed'?"),
    "unknown section": (SMALL + "\n[fault]\nloss = 0\n", "fault is unknown; did you mean 'faults'?"),
    "unknown fault": (SMALL + "\n[faults]\nlos = 0.1\n", "line 20: faults.los is unknown; did you mean 'loss'?"),
    "unknown metric": (SMALL + "\n[metrics]\nlevels = 0.9\n", "did you mean 'level'?"),
    "no name": (_line("name", ""), "name is missing"),
    "bad name": (_line("name", 'name = "../x"'), "name is '../x'"),
    "empty title": (_line("title", 'title = ""'), "title is ''"),
    "title with a line end": (_line("title", 'title = "a\\nb"'), "printable"),
    "seed below": (_line("seed", "seed = -1"), "seed is -1; allowed is a whole number from 0 to"),
    "seed above": (_line("seed", "seed = 18446744073709551616"), "seed is 18446744073709551616"),
    "seed float": (_line("seed", "seed = 1.0"), "seed is 1.0"),
    "seed boolean": (_line("seed", "seed = true"), "seed is true"),
    "no runs": (_line("runs", "runs = 0"), "line 5: runs is 0; allowed is a whole number from 1 to 1000000"),
    "runs as a list": (_line("runs", "runs = [1, 2]"), "runs is [1, 2]"),
    "too many releases": (_line("runs", "runs = 1000000") + "\n[epochs]\ncount = 100\n", "at most 2000000"),
    "unknown engine": ('engine = "exact"\n' + SMALL, "did you mean 'exact-law'?"),
    "no population": (SMALL.replace("[population]", "[epochs]"), "population is missing"),
    "population missing": ("\n".join(SMALL.splitlines()[:6]), "population is missing"),
    "question missing": (SMALL.replace("[question]\ncells", "[metrics]\nlevel = 0.9 #"), "question is missing"),
    "population no table": (SMALL.split("[population]")[0] + "population = 3\n", "population is 3; allowed is a table"),
    "no kind": (_line("kind", ""), "population.kind is missing"),
    "kind no text": (_line("kind", "kind = 3"), "line 8: population.kind is 3"),
    "no mechanism": (SMALL.split("[[mechanism]]")[0], "mechanism is missing"),
    "mechanism no array": (SMALL.replace("[[mechanism]]", "[mechanism]"), "[[mechanism]] each"),
    "unknown mechanism": (SMALL.replace('"sampling"', '"samping"'), "did you mean 'sampling'?"),
    "another order of words": (SMALL.replace('"sampling"', '"vector-mangat"'), "did you mean 'mangat-vector'?"),
    "another stroke": (SMALL.replace('"sampling"', '"one_sided"'), "did you mean 'one-sided'?"),
    "more aggregators than a window has": (SMALL + "\n[aggregators]\ncount = 6\n", "a whole number from 2 to 5"),
    "unknown mechanism key": (SMALL + "epsilom = 1\n", "mechanism[0].epsilom is unknown; did you mean 'epsilon'?"),
    "key of another kind": (SMALL + "keep = 0.7\n", "mechanism[0].keep is not a key of kind 'sampling'"),
    "rate too large": (_line("sampling_rate", "sampling_rate = 0.5"), "above 0 and below 1/2"),
    "rate zero": (_line("sampling_rate", "sampling_rate = 0"), "line 16: mechanism[0].sampling_rate is 0"),
    "rate nan": (_line("sampling_rate", "sampling_rate = nan"), "is NaN"),
    "rate inf": (_line("sampling_rate", "sampling_rate = inf"), "is Infinity"),
    "huge exponent": (_line("sampling_rate", "sampling_rate = 1e-99999999"), "mechanism[0].sampling_rate"),
    "rate comma": (_line("sampling_rate", 'sampling_rate = "0,5"'), "'0,5'"),
    "rate underscore": (_line("sampling_rate", 'sampling_rate = "1_0/100"'), "'1_0/100'"),
    "rate full width": (_line("sampling_rate", 'sampling_rate = "０.1"'), "'０.1'"),
    "rate over zero": (_line("sampling_rate", 'sampling_rate = "1/0"'), "'1/0'"),
    "rate boolean": (_line("sampling_rate", "sampling_rate = true"), "is true"),
    "no noise": (_line("epsilon", ""), "needs epsilon (of a release) or noise_epsilon"),
    "two noises": (SMALL + "noise_epsilon = 1\n", "both given"),
    "two laws of noise": (SMALL + "noise_variance = 9\n", "epsilon and noise_variance are both given"),
    "noise too narrow": (_line("epsilon", 'noise_sd = "0.4"'), "noise_sd"),
    "epsilon above": (_line("epsilon", "epsilon = 21"), "at least 1/1000 and at most 20"),
    "direct without noise": (
        SMALL.replace('"sampling"\nsampling_rate = "1/4"\nepsilon = 1', '"direct"\nnoise_epsilon = "none"'),
        "no privacy without noise",
    ),
    "two ways": (SMALL + '\n[[mechanism]]\nkind = "k-ary"\nepsilon_local = 1\nkeep = 0.9\n', "exactly one of the two"),
    "neither way": (SMALL + '\n[[mechanism]]\nkind = "k-ary"\n', "mechanism[1].epsilon_local or keep"),
    "bad direction": (SMALL + '\n[[mechanism]]\nkind = "one-sided"\nepsilon = 1\ndirection = "left"\n', "'left'"),
    "one name twice": (SMALL + '\n[[mechanism]]\nkind = "sampling"\nepsilon = 2\n', "mechanism[1].name is 'sampling'"),
    "one aggregator": (SMALL + "\n[aggregators]\ncount = 1\n", "aggregators.count is 1"),
    "batch of one": (SMALL + "\n[aggregators]\nmin_batch_size = 1\n", "min_batch_size is 1"),
    "loss above": (SMALL + "\n[faults]\nloss = 1.1\n", "faults.loss is 1.1"),
    "naive as number": (SMALL + "\n[faults]\nnaive = 1\n", "allowed is true or false"),
    "outage of a stranger": (
        SMALL + '\n[[faults.outage]]\naggregator = 2\nstep = "collecting"\nseconds = 1\n',
        "faults.outage[0].aggregator is 2; allowed is a whole number from 0 to 1",
    ),
    "outage at no step": (
        SMALL + '\n[[faults.outage]]\naggregator = 1\nstep = "lunch"\nseconds = 1\n',
        "line 19: faults.outage names step 'lunch'",
    ),
    "two kinds of drop-out": (SMALL + "\n[faults]\ndrop_out = 0.1\nignition = true\n", "faults.drop_out is 1/10; with"),
    "unknown key of an attacker": (
        SMALL + '\n[[attacker]]\nkind = "liars"\ndevises = 1\n',
        "attacker[0].kind cannot be used: attacker 'liars': 'devises' is not a key",
    ),
    "unknown attacker": (SMALL + '\n[[attacker]]\nkind = "liar"\n', "did you mean 'liars'?"),
    "attacker with a table": (SMALL + '\n[[attacker]]\nkind = "liars"\ndevices = {a = 1}\n', "attacker[0].devices"),
    "attackers of one name": (SMALL + 2 * '\n[[attacker]]\nkind = "liars"\ndevices = 1\n', "another attacker"),
    "no epoch": (SMALL + "\n[epochs]\ncount = 0\n", "epochs.count is 0"),
    "ledger zero": (SMALL + "\n[epochs]\ndevice_epsilon = 0\n", "epochs.device_epsilon is 0"),
    "level one": (SMALL + "\n[metrics]\nlevel = 1\n", "metrics.level is 1"),
    "empty axis": (_line("epsilon", "epsilon = []"), "mechanism[0].epsilon is an empty list"),
    "axis of tables": (_line("epsilon", "epsilon = [{a = 1}]"), "takes numbers, texts"),
    "axis of lists": (_line("epsilon", "epsilon = [[1]]"), "takes numbers, texts"),
    "axis value twice": (_line("epsilon", "epsilon = [1, 1]"), "'1' twice"),
    "bad value on an axis": (_line("epsilon", "epsilon = [1, 99]"), "mechanism[0].epsilon is 99"),
    "too many cases": (
        changed(epsilon=f"epsilon = {list(range(1, 21))}") + f"\n[faults]\nlate = {[i / 100 for i in range(60)]}\n",
        "make 1200 cases; at most 1000",
    ),
    "sweep without list": (SMALL + '\n[sweep]\n"faults.loss" = 1\n', "sweep.faults.loss is 1; allowed is a list"),
    "sweep of nothing": (SMALL + '\n[sweep]\n"fault.loss" = [1]\n', "did you mean 'faults'?"),
    "sweep of a top key": (SMALL + '\n[sweep]\n"seed" = [1]\n', "names no key of a section"),
    "sweep of a given key": (SMALL + '\n[sweep]\n"population.devices" = [1]\n', "given by population.devices already"),
    "sweep of an unknown key": (SMALL + '\n[sweep]\n"faults.los" = [0.1]\n', "line 20: faults.los is unknown"),
    "sweep of no mechanism": (SMALL + '\n[sweep]\n"mechanism.sampl.epsilon" = [1]\n', "did you mean 'sampling'?"),
    "sweep too deep": (SMALL + '\n[sweep]\n"faults.loss.x" = [1]\n', "too many points"),
}


def test_a_bad_file_is_refused_by_name() -> None:
    for name, (text, expected) in BAD.items():
        message = said_by(ScenarioError, scenario_of, text)

        assert expected in message, name
        assert "study.toml" in message, name
        assert "\n" not in message, name
        assert len(message) < 1000, name


def test_what_a_population_refuses_gets_file_and_line() -> None:
    with pytest.raises(ScenarioError, match=r"study\.toml line 8: population\.kind: 'odd' is not known"):
        small(kind='kind = "odd"').case(0)


def test_more_epochs_than_the_population_has_are_refused() -> None:
    with pytest.raises(ScenarioError, match=r"line 20: epochs\.count is 5; this population can be asked 4 times"):
        scenario_of(SMALL + "\n[epochs]\ncount = 5\n").case(0)


def test_a_yes_or_no_kind_refuses_several_values() -> None:
    text = SMALL + '\n[[mechanism]]\nkind = "warner"\nepsilon_local = 1\n'
    with pytest.raises(ScenarioError, match=r"mechanism\[1\]\.kind cannot be used: .* answers yes or no"):
        scenario_of(text).case(1)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b"#" * (MAX_BYTES + 1), "more than 1048576 bytes"),
        (b'name = "\xff"', "not UTF-8 text (byte 8)"),
    ],
)
def test_bad_bytes_are_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "study.toml"
    path.write_bytes(content)

    with pytest.raises(ScenarioError) as refused:
        read_scenario(path, make_even)
    assert expected in str(refused.value)


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="cannot be read: No such file"):
        read_scenario(tmp_path / "none.toml", make_even)
    with pytest.raises(ScenarioError, match="is a directory"):
        read_scenario(tmp_path, make_even)

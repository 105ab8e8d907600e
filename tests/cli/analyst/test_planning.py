"""A plan in Python gives the numbers of `fleetcount plan`, and takes its own numbers exactly."""

import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import fleetcount as fc
import matplotlib as mpl
import numpy as np
import pytest
from fleetcount_protocol.errors import FleetcountError

from tests.support.plans import plan_sampling

GOOD: dict[str, Any] = {"devices": 100_000, "values": 4, "epsilon": 1}


def test_a_plan_is_the_command_s(fleetcount: Callable) -> None:
    planned = fc.plan(**GOOD)
    shown = fleetcount("plan", "--devices", "100000", "--values", "4", "--epsilon", "1").out

    frame = planned.to_pandas()
    assert list(frame.columns) == ["true_count", "standard_error", "low", "high"]
    assert frame[frame["true_count"] == 1000].values.tolist()[0][2:] == [896, 1114]
    assert ["1,000", "54.9", "896", "1,114", "218", "21.8"] in [line.split() for line in shown.splitlines()]
    assert planned.smallest_count_seen == plan_sampling(100_000, 4, Fraction(1)).smallest_count_seen
    assert planned.standard_error(1000) == pytest.approx(54.9, abs=0.1)


def test_devices_and_counts_may_be_numpys_and_no_count_is_above_the_fleet() -> None:
    planned = fc.plan(devices=np.int64(100_000), values=np.int32(4), epsilon=1)

    assert planned.plan == fc.plan(**GOOD).plan
    assert planned.standard_error(np.int64(1000)) == fc.plan(**GOOD).standard_error(1000)
    for wrong in (-1, 100_001, 1.5, True):
        with pytest.raises(fc.UsageError, match=f"count is '{wrong}', allowed: a whole number from 0 to 100000"):
            planned.standard_error(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("epsilon", [0.1, "0.1", "1/10", Decimal("0.1"), Fraction(1, 10)])
def test_an_epsilon_is_the_number_that_it_is_printed_as(epsilon: object) -> None:
    given = fc.plan(**GOOD | {"epsilon": epsilon})

    assert given.plan.design == fc.plan(**GOOD | {"epsilon": Fraction(1, 10)}).plan.design


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"devices": 0}, "devices is '0', allowed: a whole number from 1 to 1000000000"),
        ({"devices": 20.5}, "devices is '20.5'"),
        ({"values": True}, "values is 'True'"),
        ({"values": 4096}, "values is '4096'"),
        ({"epsilon": 0}, "epsilon: '0' is out of range"),
        ({"epsilon": float("nan")}, "epsilon: 'nan' is not a number"),
        ({"noise": "gausian"}, "noise is 'gausian', allowed: geometric or gaussian; did you mean 'gaussian'?"),
        ({"mechanism": "onesided"}, "unary, asymmetric, one-sided; did you mean 'one-sided'?"),
        ({"mechanism": "one-sided", "noise": "gaussian"}, "two sides"),
        ({"zooms": 2, "values": 8}, "a square number"),
        ({"zooms": 1}, "zooms is 1, allowed: 2 to"),
        ({"sampling_rate": 0.5}, "sampling_rate: '0.5' is out of range"),
        ({"show": "meen"}, "show is 'meen', allowed: mean or quantiles; did you mean 'mean'?"),
        ({"show": "mean"}, "show is 'mean' of sampling answers, allowed: of direct ones"),
        ({"show": "mean", "mechanism": "direct", "total": False}, "allowed without zooms, shares, an aim and no total"),
        ({"show": "quantiles", "mechanism": "direct", "zooms": 2, "in_order": True}, "allowed without zooms"),
        ({"aim": "cell"}, "an aim is given, allowed with zooms"),
        ({"aim": {}, "zooms": 2, "values": 16}, "aim is empty, allowed: cell, block, total"),
        ({"aim": {"cells": 1}, "zooms": 2, "values": 16}, "aim is 'cells', allowed: cell, block, total"),
        ({"aim": {"cell": 0}, "zooms": 2, "values": 16}, "aim cell: '0' is out of range"),
        ({"aim": ["cell"], "zooms": 2, "values": 16}, "aim is \"['cell']\", allowed: a text or a mapping of cell"),
        ({"zooms": 10**30, "values": 16}, "zooms is 1000000000000000000000000000000, allowed: 2 to 8"),
        ({"zooms": 2.0, "values": 16}, "zooms is '2.0', allowed: 2 to 8, or the sides: several"),
        ({"zooms": (1, 2.0), "values": 16}, "zooms is '2.0', allowed: a whole number from 1 to 128"),
        ({"zooms": "1,x", "values": 16}, "zooms: 'x' is not a whole number; it must be 1 to 128"),
        ({"zooms": 2, "values": 16, "shares": 1}, "shares is '1', allowed: several, or a text of them with commas"),
        ({"mechanism": "asymmetric", "epsilon_local": 1, "flips": 1}, "flips is '1', allowed: several"),
        ({"mechanism": "k-ary"}, "epsilon_local is missing, allowed of k-ary answers: at least 0.001 and at most 10"),
        ({"aggregators": "2"}, "aggregators is '2', allowed: a whole number from 2 to 5"),
        ({"mechanism": "direct", "at_once": 5}, "at_once is '5', allowed: a whole number from 1 to 4"),
        ({"mechanism": "direct", "total": "no"}, "total is 'no', allowed: True or False"),
        ({"zooms": 2, "values": 16, "in_order": 1}, "in_order is '1', allowed: True or False"),
    ],
)
def test_what_cannot_be_planned_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, FleetcountError), match=re.escape(said)):
        fc.plan(**GOOD | changes)


def test_a_plan_of_a_number_has_the_errors_of_its_mean() -> None:
    planned = fc.plan(**GOOD | {"values": 33, "mechanism": "direct", "show": "mean"})

    assert planned.mean_standard_errors == {
        devices: pytest.approx(error, rel=0.05) for devices, error in ((200, 0.01), (1000, 0.0021), (100_000, 4.5e-05))
    }
    median = fc.plan(**GOOD | {"values": 64, "mechanism": "direct", "show": "quantiles"}).median_standard_errors
    assert median[1000] == pytest.approx(0.023, abs=0.0005)
    assert fc.plan(**GOOD).mean_standard_errors == fc.plan(**GOOD).median_standard_errors == {}


def test_an_aim_chooses_the_shares_of_zooms() -> None:
    asked = GOOD | {"values": 64, "mechanism": "direct", "noise": "gaussian", "zooms": (1, 2)}

    planned = fc.plan(**asked, aim={"block": 1, "cell": 10})

    assert planned.shares == (Fraction(22, 25), Fraction(3, 25))
    assert fc.plan(**asked, aim="block=0.1,cell").shares == planned.shares
    assert fc.plan(**asked).shares == (Fraction(1, 2), Fraction(1, 2))
    assert fc.plan(**GOOD).shares == ()


def test_a_plan_is_seen_in_words_in_a_table_and_in_a_picture() -> None:
    mpl.use("agg")
    from matplotlib import pyplot

    planned = fc.plan(**GOOD)
    axes = planned.plot()

    assert str(planned).startswith("100,000 devices, 4 values, 2 aggregators, epsilon 1, sampling")
    assert "are told apart from 0 at 95 %" in str(planned)
    # As the command shows it: exact, where it has more than six digits.
    assert (
        str(fc.plan(**GOOD | {"sampling_rate": "0.1234567"}))
        .partition(":")[0]
        .endswith("sampling rate 0.123457 (1234567/10000000)")
    )
    assert "896 to 1,114" in planned._repr_html_()
    assert len(planned.statement.sentences) == 2
    assert axes.get_xscale() == "log"
    assert axes.get_legend() is not None
    assert planned.plot(ax=axes) is axes
    assert len(planned.table) == len(planned.to_pandas())
    pyplot.close(axes.figure)


def test_several_of_a_kind_are_a_sequence_numpys_or_a_text_as_the_command_takes_it() -> None:
    asked: dict[str, Any] = GOOD | {"values": 64, "mechanism": "direct", "aggregators": np.int64(3)}
    zooms = [fc.plan(**asked, zooms=given).plan for given in ((1, 4), "1,4", np.array([1, 4]))]
    shares = [fc.plan(**asked, zooms=2, shares=given).plan for given in ((0.8, 0.2), "0.8,0.2", np.array([0.8, 0.2]))]

    assert zooms[0].design.levels.sides == (1, 4)
    assert zooms[0].design.aggregators == 3
    assert zooms[1:] == zooms[:1] * 2
    assert shares[1:] == shares[:1] * 2
    assert fc.plan(**asked, zooms="3").plan == fc.plan(**asked, zooms=np.int64(3)).plan
    assert fc.plan(**asked, at_once=np.int64(2)).plan == fc.plan(**asked, at_once=2).plan


def test_one_flip_is_that_of_all_values() -> None:
    asked: dict[str, Any] = {"devices": 300, "values": 3, "epsilon": 1, "mechanism": "asymmetric", "epsilon_local": 1}

    one, each = (fc.plan(**asked, flips=flips).columns_of() for flips in ("up", "up, up,up"))

    assert one == each

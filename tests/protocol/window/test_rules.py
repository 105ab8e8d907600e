"""A window that may be built may be asked: everything else is refused with its value and the allowed range."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast

import pytest
from fleetcount_mechanisms.noise import GaussianNoise, OneSidedNoise
from fleetcount_mechanisms.responses import (
    KaryResponse,
    Mangat,
    MangatVector,
    OptimizedUnaryEncoding,
    TwoCoin,
    Warner,
)
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_mechanisms.statement import epsilon_of, ledger_loss_of, views_of
from fleetcount_protocol.errors import DecodeError, QuestionError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.layout import fraction_bytes
from fleetcount_protocol.window.domain import Bins, Categories, SquareGrid
from fleetcount_protocol.window.fields import CoarserLevel, LevelKind, Mode, Release, ReleaseKind, UploadStyle
from fleetcount_protocol.window.window import (
    Window,
    context_of,
    decode_window,
    opened_count,
    opened_outputs,
    opened_ranges,
    operator_key,
    prio3_for,
)

from tests.support.protocol_samples import (
    aggregator,
    at_window,
    at_zooms,
    every_window,
    keyed_aggregator,
    one_round_window,
    sampling_window,
)

NOISED = Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(1), level=Fraction(19, 20))
EXACT = replace(NOISED, kind=ReleaseKind.EXACT, noise_epsilon=None)
GAUSSIAN = replace(EXACT, kind=ReleaseKind.GAUSSIAN, noise_variance=Fraction(662))
ONE_SIDED = replace(NOISED, kind=ReleaseKind.ONE_SIDED, thresholds=(3,))
TWO = SamplingDie.uniform(Fraction(1, 4), 2)


def refuses(match: str, **changes: Any) -> None:
    with pytest.raises(QuestionError, match=match):
        sampling_window(**changes)


@pytest.mark.parametrize("field", ["name", "signal"])
@pytest.mark.parametrize("text", ["", "a\nb", "e\u0301", "a" * 201, "a\u200b", " a", "\ud800"])
def test_names_are_plain_text_of_a_bounded_length(field: str, text: str) -> None:
    refuses(field, **{field: text})


@pytest.mark.parametrize("name", ["", "A", "a/b", "a+b", "#", "a" * 33, "-a", "a\n", "ä", "$sys"])
def test_deployment_can_stand_in_a_topic(name: str) -> None:
    refuses("deployment", deployment=name)


@pytest.mark.parametrize("names", [("e\u0301",), ("",), ("a" * 201,), ("a\0",), ("x" * 200 + "é",)])
def test_categories_are_plain_text_too(names: tuple[str, ...]) -> None:
    refuses("category", domain=Categories(names=names), mechanism=SamplingDie.uniform(Fraction(1, 4), 1))


@pytest.mark.parametrize(
    "domain",
    [
        Bins(edges=(Fraction(0), Fraction(1), Fraction(2**63)), open_above=False, unit=""),
        Bins(edges=(Fraction(0), Fraction(1, 2**63), Fraction(1)), open_above=False, unit=""),
        Bins(edges=(0, 1, 2), open_above=False, unit=""),  # type: ignore[arg-type]  # Whole numbers are no fractions.
        Bins(edges=(0.5, 1.5, 2.5), open_above=False, unit=""),  # type: ignore[arg-type]  # Nor are floats.
        SquareGrid(x0=Fraction(-(2**63)), y0=Fraction(0), size=Fraction(1), columns=2, rows=1),
        SquareGrid(x0=0.5, y0=Fraction(0), size=Fraction(1), columns=2, rows=1),  # type: ignore[arg-type]  # A float.
    ],
)
def test_domain_numbers_are_exact_and_bounded(domain: Bins) -> None:
    refuses("Fraction|2\\*\\*63", domain=domain, mechanism=TWO)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"round_one_opens": -60}, "round_one_opens is -60"),
        ({"round_one_opens": 1_800_000_001}, "multiple of time_precision_s"),
        ({"round_one_opens": 1_800_000_600}, "round_one_closes"),
        ({"round_one_opens": 1_800_000_660}, "round_one_closes"),
        ({"round_two_closes": 1_800_000_600}, "round_two_closes"),
        ({"expiry": 1_800_001_200}, "expiry"),
        ({"expiry": 1_800_001_201}, "multiple"),
        ({"round_one_opens": 1_800_001_200 - 31 * 86_400 - 60}, "2678460 s"),
        ({"expiry": 1_800_000_000 + 100 * 86_400 + 60}, "8640060 s"),
        ({"expiry": 1_800_086_400_000}, "253402300799"),  # Milliseconds for seconds.
        ({"expiry": 2**63}, "expiry"),
        ({"expiry": 1_800_086_400.0}, "whole number"),
        ({"expiry": float("nan")}, "whole number"),
        ({"expiry": True}, "whole number"),
        ({"time_precision_s": 0}, "time_precision_s is 0"),
        ({"time_precision_s": 86_401}, "time_precision_s is 86401"),
    ],
)
def test_times_are_whole_ordered_and_on_the_grid(changes: dict[str, Any], why: str) -> None:
    refuses(why, **changes)


def test_longest_window_and_lifetime_are_allowed() -> None:
    opens = 1_800_001_200 - 31 * 86_400

    assert sampling_window(round_one_opens=opens, expiry=opens + 100 * 86_400).round_one_opens == opens


@pytest.mark.parametrize("size", [0, 1, -5, 2**30 + 1, 2.5, True])
def test_smallest_batch_is_at_least_two(size: int) -> None:
    refuses("min_batch_size", min_batch_size=size)


@pytest.mark.parametrize("parties", [0, 1])
def test_fewer_than_two_aggregators_are_refused(parties: int) -> None:
    refuses("number of aggregators", parties=parties)


def test_six_aggregators_are_refused() -> None:
    six = (*(aggregator(position) for position in range(5)), aggregator(0))

    refuses("number of aggregators is 6", aggregators=six)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"aggregator_id": AggregatorId("alpha")}, "aggregator id alpha is given twice"),
        ({"signing_public_key": aggregator(0).signing_public_key}, "signing key .* given twice"),
        ({"grpc_endpoint": "127.0.0.1:7411"}, "gRPC endpoint .* given twice"),
        ({"operator": "OPERATOR  alpha"}, "1 operator"),
        ({"operator": "Ｏperator alpha"}, "1 operator"),
        ({"operator": ""}, "operator of beta"),
        ({"grpc_endpoint": "", "mqtt_broker": ""}, "neither"),
        ({"hpke_keys": keyed_aggregator(1).hpke_keys}, "beta names 1 sealing keys, a question takes them from its key"),
        ({"signing_public_key": bytes(31)}, "31 bytes"),
        ({"signing_public_key": bytes(32)}, "small order"),
    ],
)
def test_aggregators_are_distinct_and_well_described(changes: dict[str, Any], why: str) -> None:
    refuses(why, aggregators=(aggregator(0), replace(aggregator(1), **changes)))


@pytest.mark.parametrize(
    "endpoint",
    [
        "host",
        ":1",
        "host:",
        "host:0",
        "host:70000",
        "host:65536",
        "host:01",
        "host:1 ",
        "host:１",
        "ho st:1",
        "-h:1",
        "h-:1",
        "h..i:1",
        "http://h:1",
        "user@h:1",
        "h/:1",
        "::1:1",
        "[::g]:1",
        "256.1.1.1:1",
        "1.2.3:1",
        "h" * 64 + ":1",
        "h\0:1",
        "ä.de:1",
    ],
)
def test_endpoints_are_host_and_port(endpoint: str) -> None:
    for field in ("grpc_endpoint", "mqtt_broker"):
        refuses("host:port", aggregators=(aggregator(0), replace(aggregator(1), **{field: endpoint})))


@pytest.mark.parametrize("endpoint", ["a:1", "a-b.example:65535", "127.0.0.1:80", "[::1]:7411", "[2001:db8::2]:1"])
def test_good_endpoints_are_taken(endpoint: str) -> None:
    window = sampling_window(aggregators=(aggregator(0), replace(aggregator(1), grpc_endpoint=endpoint)))

    assert window.aggregators[1].grpc_endpoint == endpoint


@pytest.mark.parametrize(
    ("mode", "mechanism"),
    [
        (Mode.SAMPLING, None),
        (Mode.SAMPLING, Mangat(Fraction(1, 3))),
        (Mode.RESPONSE, None),
        (Mode.RESPONSE, SamplingDie.uniform(Fraction(1, 4), 6)),
        (Mode.DIRECT, Mangat(Fraction(1, 3))),
    ],
)
def test_mechanism_fits_the_mode(mode: Mode, mechanism: object) -> None:
    rounds = {} if mode is Mode.SAMPLING else {"round_two_closes": 1_800_000_600}

    refuses("mechanism", mode=mode, mechanism=mechanism, **rounds)


@pytest.mark.parametrize("mechanism", [SamplingDie.uniform(Fraction(1, 4), 5), SamplingDie.uniform(Fraction(1, 4), 7)])
def test_mechanism_answers_exactly_the_values(mechanism: SamplingDie) -> None:
    refuses("the domain has 6", mechanism=mechanism)


@pytest.mark.parametrize("mechanism", [Mangat(Fraction(1, 3)), KaryResponse(Fraction(1, 2), 2)])
def test_response_answers_exactly_the_values(mechanism: Mangat) -> None:
    with pytest.raises(QuestionError, match="the domain has 3"):
        one_round_window(Mode.RESPONSE, domain=Categories(names=("a", "b", "c")), mechanism=mechanism)


@pytest.mark.parametrize("rate", [Fraction(1, 2) + Fraction(1, 10**9), Fraction(3, 4)])
def test_half_of_the_devices_may_be_sampled_and_no_more(rate: Fraction) -> None:
    assert sampling_window(mechanism=SamplingDie.uniform(Fraction(1, 2), 6, allow_large_rate=True)).question
    refuses("from 1/1000000 to 1/2", mechanism=SamplingDie.uniform(rate, 6, allow_large_rate=True))


@pytest.mark.parametrize("index", [-1, 2**16, 1.0, True])
def test_a_window_has_a_place_in_its_question(index: int) -> None:
    assert at_window(sampling_window(), index=2**16 - 1).question
    with pytest.raises(QuestionError, match="index of the window is"):
        at_window(sampling_window(), index=index)


def test_a_response_window_has_no_noised_participants() -> None:
    assert at_window(one_round_window(Mode.DIRECT), noised_participants=True).question
    with pytest.raises(QuestionError, match="participants is noised, allowed in response mode: hidden"):
        at_window(one_round_window(Mode.RESPONSE), noised_participants=True)


def test_mechanism_numbers_are_bounded() -> None:
    refuses("2\\*\\*63", mechanism=SamplingDie.uniform(Fraction(1, 2**63), 6))
    with pytest.raises(QuestionError, match="2\\*\\*63"):
        one_round_window(Mode.RESPONSE, mechanism=Mangat(Fraction(1, 2**64)))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"noise_epsilon": Fraction(0)}, "noise_epsilon is 0"),
        ({"noise_epsilon": Fraction(-1)}, "noise_epsilon is -1"),
        ({"noise_epsilon": Fraction(101, 10)}, "noise_epsilon is 101/10"),
        ({"noise_epsilon": Fraction(1, 10**6 + 1)}, "noise_epsilon"),
        ({"noise_epsilon": Fraction(2**63 + 1, 2**63)}, "2\\*\\*63"),
        ({"noise_epsilon": 1.0}, "Fraction"),
        ({"noise_epsilon": 1}, "Fraction"),
        ({"noise_epsilon": None}, "Fraction"),
        ({"level": Fraction(0)}, "level is 0"),
        ({"level": Fraction(1)}, "level is 1"),
        ({"level": 0.95}, "Fraction"),
        ({"thresholds": (1,)}, "1 thresholds, not 0"),
        ({"kind": ReleaseKind.EXACT}, "no noise_epsilon"),
        ({"kind": ReleaseKind.ONE_SIDED}, "not for sampling"),
        ({"noise_variance": Fraction(9)}, "geometric has no noise_variance"),
    ],
)
def test_release_is_noised_as_announced(changes: dict[str, Any], why: str) -> None:
    refuses(why, release=replace(NOISED, **changes))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"noise_variance": None}, "noise_variance is None, allowed: an exact Fraction"),
        ({"noise_variance": 9.0}, "noise_variance is 9.0, allowed: an exact Fraction"),
        ({"noise_variance": 9}, "Fraction"),
        ({"noise_variance": Fraction(6, 25)}, "noise variance is 6/25, allowed: 1/4 <= noise variance <= 100000000"),
        ({"noise_variance": Fraction(10**8 + 1)}, "noise variance is 100000001, allowed"),
        ({"noise_variance": Fraction(2**63 + 1, 2**63)}, "2\\*\\*63"),
        ({"noise_epsilon": Fraction(1)}, "gaussian release has no noise_epsilon"),
        ({"thresholds": (1,)}, "1 thresholds, not 0"),
        ({"kind": ReleaseKind.EXACT}, "exact has no noise_variance"),
    ],
)
def test_a_gaussian_release_has_a_variance_in_its_range(changes: dict[str, Any], why: str) -> None:
    refuses(why, release=replace(GAUSSIAN, **changes))


def test_a_gaussian_release_goes_with_every_mode() -> None:
    assert sampling_window(release=GAUSSIAN).design.noise == GaussianNoise(Fraction(662))
    for mode in (Mode.RESPONSE, Mode.DIRECT):
        assert one_round_window(mode, release=GAUSSIAN).design.noise == GaussianNoise(Fraction(662))


def test_exact_release_only_hides_the_participants_of_differences() -> None:
    assert sampling_window(release=EXACT).release.noise_epsilon is None
    for mode in (Mode.RESPONSE, Mode.DIRECT):
        with pytest.raises(QuestionError, match="exact is not for"):
            one_round_window(mode, release=EXACT)


@pytest.mark.parametrize("thresholds", [(), (1, 2), (-1,), (2**32,), (1.5,)])
def test_one_sided_release_has_one_threshold_a_cell(thresholds: tuple[int, ...]) -> None:
    assert one_round_window(Mode.DIRECT, release=ONE_SIDED).release.thresholds == (3,)
    with pytest.raises(QuestionError, match="threshold"):
        one_round_window(Mode.DIRECT, release=replace(ONE_SIDED, thresholds=thresholds))
    with pytest.raises(QuestionError, match="one-sided is not for response"):
        one_round_window(Mode.RESPONSE, release=ONE_SIDED)


ZOOM, SUM = LevelKind.ZOOM, (LevelKind.WEIGHTED, 0)


def at(*sides: int | None, noise: Fraction = Fraction(1)) -> tuple[CoarserLevel, ...]:
    """Return levels of these sides above the cells, None being the total."""
    zoom, total = LevelKind.ZOOM, LevelKind.TOTAL
    levels = [(total, 0) if side is None else (zoom, side) for side in sides]
    return tuple(CoarserLevel(kind=kind, number=number, noise=noise) for kind, number in levels)


def rows(*levels: tuple[LevelKind, int], noise: Fraction = Fraction(1)) -> tuple[CoarserLevel, ...]:
    """Return levels above the cells, each a kind and a number."""
    return tuple(CoarserLevel(kind=kind, number=number, noise=noise) for kind, number in levels)


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("direct_zooms", {"coarser": at(8)}, "squares of 8 times the side are asked of a grid of 4 by 8 squares"),
        ("direct_zooms", {"coarser": at(4, 2)}, r"sides are \(1, 4, 2\), allowed: growing powers of two"),
        ("direct_zooms", {"coarser": at(3)}, r"sides are \(1, 3\), allowed: growing powers of two"),
        ("direct_zooms", {"coarser": at(0)}, r"sides are \(1, 0\), allowed: growing powers of two"),
        ("direct_zooms", {"coarser": at(True)}, "a level of side 'True' is asked, allowed: a whole number"),
        ("direct_zooms", {"coarser": at(None, 2)}, "the total stands before other levels, allowed: as the last one"),
        ("direct_zooms", {"coarser": at(None, None)}, "the total stands before other levels, allowed: as the last one"),
        ("direct_zooms", {"coarser": at(2, noise=Fraction(1, 5))}, "noise variance is 1/5, allowed: 1/4"),
        (
            "sampling_zooms",
            {"coarser": at(2, noise=Fraction(11))},
            "noise of squares of 2 times the side is 11, allowed",
        ),
        ("sampling_zooms", {"coarser": at(2, noise=Fraction(2))}, "zooms of sampled answers have unequal noise"),
        ("sampling_zooms", {"coarser": at(None)}, "a total of sampled answers is allowed beside the cells alone, with"),
        ("one_sided_zooms", {"coarser": at(None), "thresholds": (3,) * 9}, "a total is asked of one-sided counts"),
        ("sampling_grid", {"coarser": at(2)}, "squares of 2 times the side are asked of a grid of 3 by 2 squares"),
        ("direct", {"coarser": at(2)}, "zooms are asked of Categories, allowed: 1"),
        ("sampling_h3_envelope", {"coarser": at(2)}, "zooms are asked of H3Cells, allowed: 1"),
        ("sampling_places", {"coarser": at(2)}, "zooms are asked of Prefixes, allowed: 1"),
        ("sampling_faces_bins", {"coarser": at(2)}, "2 values together are asked of 2 values in order, allowed: 1"),
        ("bins_zooms", {"coarser": at(8)}, "8 values together are asked of 8 values in order, allowed: 4 at most"),
        (
            "bins_zooms",
            {"kind": ReleaseKind.GEOMETRIC, "noise_epsilon": Fraction(1), "noise_variance": None},
            "noise of 2 bins together is 662, allowed",
        ),
        ("direct_mean", {"coarser": rows(SUM, SUM)}, "the weighted sum is asked behind weighted, allowed"),
        ("direct_mean", {"coarser": rows(SUM, (ZOOM, 2))}, "2 points together is asked behind weighted, allowed"),
        ("direct_mean", {"coarser": rows((LevelKind.WEIGHTED, 2))}, "the weighted sum has the number 2, allowed: 0"),
        ("direct_mean", {"coarser": rows((LevelKind.TOTAL, 2))}, "the total has the number 2, allowed: 0"),
        ("direct_mean", {"coarser": rows((ZOOM, 2))}, "2 values together are asked of 9 values in order, allowed: 1"),
        ("direct", {"coarser": rows(SUM)}, "a weighted sum is asked of Categories, allowed: of Numbers"),
        ("direct_mean", {"coarser": rows((LevelKind.MARGIN, 1))}, "margins are asked of Numbers, allowed: of a table"),
        ("sampling_zooms", {"kind": ReleaseKind.EXACT, "noise_epsilon": None}, "an exact release has squares of 2"),
        ("one_sided_zooms", {"thresholds": (3,) * 8}, "release has 8 thresholds, not 10"),
    ],
)
def test_zooms_are_those_of_a_grid_or_of_bins_with_noise(name: str, changes: dict[str, Any], why: str) -> None:
    window = every_window()[name]

    with pytest.raises(QuestionError, match=why):
        replace(window, release=replace(window.release, **changes))


def test_a_randomized_answer_has_no_zooms() -> None:
    release = at_zooms(Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(1), level=Fraction(9, 10)), 2)
    grid = SquareGrid(x0=Fraction(0), y0=Fraction(0), size=Fraction(1), columns=2, rows=4)

    for mechanism in (KaryResponse(Fraction(1, 2), 8), MangatVector(Fraction(1, 3), 8)):
        with pytest.raises(QuestionError, match=r"levels is 2 of answers by (k-ary|mangat-vector), allowed: 1"):
            one_round_window(Mode.RESPONSE, domain=grid, mechanism=mechanism, release=release)


def test_larger_squares_fill_a_grid_of_several_rows() -> None:
    window = every_window()["direct_zooms"]

    for columns, rows in ((32, 1), (1, 32)):
        with pytest.raises(
            QuestionError, match=f"zooms are asked of a grid of {columns} by {rows} squares, allowed: 1"
        ):
            replace(window, domain=replace(cast("SquareGrid", window.domain), columns=columns, rows=rows))


def test_bins_together_are_named_by_their_outer_edges() -> None:
    window = every_window()["bins_zooms"]

    assert [window.label(cell) for cell in (1, 8, 9, 12, 13, 14, 15)] == [
        "[0, 10) km/h",
        "[70, ∞) km/h",
        "[0, 20) km/h",
        "[60, ∞) km/h",
        "[0, 40) km/h",
        "[40, ∞) km/h",
        "total",
    ]
    closed = replace(cast("Bins", window.domain), edges=(*map(Fraction, range(-4, 5)),), open_above=False)
    assert closed.coarser(4).label(2) == "[0, 4) km/h"


def test_a_larger_square_is_named_by_its_place_and_how_many_times_the_side_it_has() -> None:
    window = every_window()["direct_zooms"]

    assert [window.label(cell) for cell in (1, 32, 33, 40, 41, 42)] == [
        "0,0",
        "3,7",
        "0,0/2",
        "1,3/2",
        "0,0/4",
        "0,1/4",
    ]
    assert window.design.cell_count == 42


def test_points_together_are_named_by_the_first_and_the_last() -> None:
    window, mean = every_window()["numbers_zooms"], every_window()["direct_mean"]

    named = {1: "0 km/h", 8: "35 km/h", 9: "0 to 5 km/h", 12: "30 to 35 km/h", 13: "0 to 15 km/h", 15: "total"}
    assert {cell: window.label(cell) for cell in named} == named
    assert [mean.label(cell) for cell in (9, 10, 11)] == ["30.5 km/h", "weighted sum", "total"]
    for cell in (0, 12):
        with pytest.raises(QuestionError, match=f"cell is {cell}, allowed: 1 to 11"):
            mean.label(cell)


def test_a_weighted_sum_is_of_direct_numbers_alone() -> None:
    numbers = every_window()["direct_mean"]
    die = SamplingDie.uniform(Fraction(1, 4), 9)

    with pytest.raises(QuestionError, match="a weighted sum is asked of sampling answers, allowed: of direct ones"):
        sampling_window(domain=numbers.domain, mechanism=die, release=numbers.release)
    one_sided = Release(
        kind=ReleaseKind.ONE_SIDED,
        noise_epsilon=Fraction(1),
        level=Fraction(9, 10),
        thresholds=(3,) * 10,
        coarser=rows(SUM),
    )
    with pytest.raises(QuestionError, match="a weighted sum is asked of one-sided answers, allowed: of direct ones"):
        replace(numbers, release=one_sided)


@pytest.mark.parametrize("code", [132, 143, 145, 255])
def test_an_unknown_level_is_refused(code: int) -> None:
    window = every_window()["direct_mean"]
    data, level = window.canonical, b"\x90" + fraction_bytes(window.release.coarser[0].noise)

    assert data.count(level) == 1
    assert decode_window(data) == window
    with pytest.raises(DecodeError, match=f"window names the unknown level {code}"):
        decode_window(data.replace(level, bytes([code]) + level[1:]))


def test_a_report_adds_to_an_opened_number_what_its_level_says() -> None:
    window = every_window()["direct_mean"]

    assert [(count, each) for _, count, each in opened_ranges(window)] == [(9, (0, 1)), (1, (-8, 8)), (1, (0, 1))]
    assert sum(count for _, count, _ in opened_ranges(window)) == opened_count(window)


def test_a_total_is_the_last_cell_and_no_category_is_called_like_it() -> None:
    window = one_round_window(Mode.DIRECT, domain=Categories(names=("a", "b")))
    summed = replace(window, release=replace(window.release, coarser=at(None)))

    assert [summed.label(cell) for cell in (1, 2, 3)] == ["a", "b", "total"]
    assert summed.design.levels.total
    with pytest.raises(QuestionError, match="a total is asked beside a category 'total', allowed: other names"):
        replace(summed, domain=Categories(names=("a", "total")))
    told = replace(summed, domain=Categories(names=("a", "b", "total"), most=2))
    assert told.label(4) == "told any"
    with pytest.raises(QuestionError, match="a total is asked beside a category 'told any', allowed: other names"):
        replace(told, domain=Categories(names=("a", "b", "told any"), most=2))
    with pytest.raises(QuestionError, match="total is asked of a single value, allowed: 2 values or more"):
        replace(summed, domain=Categories(names=("a",)))


def test_upload_styles_and_last_closing_time() -> None:
    envelope = {"upload_style": UploadStyle.ONE_ENVELOPE}

    assert sampling_window(**envelope, round_two_closes=1_800_000_600).upload_style is UploadStyle.ONE_ENVELOPE
    refuses("round_two_closes", **envelope, round_two_closes=1_800_000_540)
    for mode in (Mode.RESPONSE, Mode.DIRECT):
        with pytest.raises(QuestionError, match="one_envelope"):
            one_round_window(mode, **envelope)
        with pytest.raises(QuestionError, match="one round closes"):
            one_round_window(mode, round_two_closes=1_800_001_200)


@pytest.mark.parametrize("name", every_window())
def test_what_follows_from_a_window(name: str) -> None:
    window = every_window()[name]
    prio3 = prio3_for(window)

    assert context_of(window) == b"FCT1" + window.window_id
    assert prio3.shares == len(window.aggregators)
    verified = list(range(window.values if window.mode is Mode.SAMPLING else window.values + 1))
    assert len(verified[opened_outputs(window)]) == window.design.summed_count
    assert prio3.output_share_size == 8 * len(verified)


def test_circuit_follows_the_mechanism() -> None:
    windows = every_window()

    assert prio3_for(windows["sampling_grid"]).algorithm_id == 0xFFFF1001
    assert prio3_for(windows["mangat"]).algorithm_id == prio3_for(windows["direct"]).algorithm_id == 0xFFFF1002
    assert prio3_for(windows["mangat_vector"]).algorithm_id == 0xFFFFFFFF


def test_an_answer_that_hardly_ever_is_the_truth_is_not_asked_for() -> None:
    """Its estimates would leave every range: the record could not be computed, and the window would never end."""
    least = Fraction(1, 10**6)
    for weight, fits in ((least, True), (least - Fraction(1, 10**12), False)):
        half = (1 + weight) / 2
        responses = [Warner(half), TwoCoin(weight, Fraction(1, 2)), Mangat(1 - weight), KaryResponse(half, 1)]
        for response in [*responses, MangatVector(1 - weight, 1)]:
            if fits:
                assert one_round_window(Mode.RESPONSE, mechanism=response).design.exposure == least
            else:
                with pytest.raises(QuestionError, match="with weight"):
                    one_round_window(Mode.RESPONSE, mechanism=response)
    sampling_window(domain=Categories(names=("a", "b")), mechanism=SamplingDie.uniform(least, 2))
    refuses(
        "sampling rate",
        domain=Categories(names=("a", "b")),
        mechanism=SamplingDie.uniform(least - Fraction(1, 10**12), 2),
    )


@pytest.mark.parametrize("name", ["mangat", "warner", "two_coin", "k_ary", "mangat_vector", "unary"])
def test_exposure_of_a_response_is_the_weight_of_the_truth_in_its_answer(name: str) -> None:
    """Every response is a mixture: with this weight the truth itself, with the rest a draw that ignores the truth."""
    window = every_window()[name]
    response = window.mechanism
    assert response is not None
    assert not isinstance(response, SamplingDie)
    vector = isinstance(response, MangatVector | OptimizedUnaryEncoding)
    outputs = 2 if vector else window.values + 1
    law = response.bit_probability if vector else response.probability

    exposure = window.design.exposure

    rests = [
        [law(output, truth) - (exposure if output == truth else 0) for output in range(outputs)]
        for truth in range(outputs)
    ]
    assert all(rest == rests[0] for rest in rests)
    assert min(rests[0]) >= 0
    assert 0 < exposure < 1


def test_statement_and_charge_follow_the_release() -> None:
    windows = every_window()

    assert epsilon_of(windows["sampling_exact"].design) is None
    assert epsilon_of(windows["one_sided"].design) == Decimal("0.5")
    # cells/(2s) with two cells, s = 662, at delta 1e-9 (docs/privacy.md); sampled, p = 1/4.
    for name, loss in (("direct_gaussian", "0.30355"), ("sampling_gaussian", "0.07651")):
        charged = ledger_loss_of(windows[name].design)
        assert (epsilon_of(windows[name].design), charged.epsilon) == (Decimal(loss), Decimal(loss))
        assert (charged.delta, charged.pure) == (Decimal("1E-9"), False)
    # Two-cell neighbours: ln[(1 + p(e^e1 - 1)) / (1 - p(1 - e^-e1))] at p = 1/4, e1 = 1.7 (docs/privacy.md).
    assert epsilon_of(windows["sampling_grid"].design) == Decimal("0.97928")
    assert [windows[name].design.exposure for name in ("sampling_grid", "direct")] == [Fraction(1, 4), 1]
    for window in windows.values():
        adversaries = [view.adversary for view in views_of(window.design)]
        assert adversaries[:2] == ["public_and_broker", "one_aggregator"]
        assert "all_aggregators" in adversaries


def test_one_sided_statement_says_which_side_is_protected() -> None:
    views = views_of(every_window()["one_sided"].design)

    assert {view.neighbours for view in views} == {"one-sided"}
    assert "that it had none is not protected" in views[0].sentence
    assert (views[-1].adversary, views[-1].epsilon, views[-1].delta) == ("all_aggregators", None, 1)


def test_a_release_downwards_protects_the_mirror_image_and_no_other_release_has_a_direction() -> None:
    down = every_window()["one_sided_down"]
    views = views_of(down.design)

    assert down.design.noise == OneSidedNoise(Fraction(1, 2), "down")
    assert {view.neighbours for view in views} == {"one-sided-down"}
    assert "that it had one is not protected" in views[0].sentence
    assert decode_window(down.canonical) == down
    for window, direction, words in (
        (down, "sideways", "allowed: 'up' or 'down'"),
        (every_window()["direct_gaussian"], "down", "allowed: none of a gaussian release"),
    ):
        with pytest.raises(QuestionError, match=rf"direction is '{direction}', {words}"):
            replace(window, release=replace(window.release, direction=direction))


def test_an_asymmetric_answer_is_read_back_with_its_flips_and_states_what_it_hides() -> None:
    window = every_window()["asymmetric"]
    views = {view.adversary: view for view in views_of(window.design)}

    assert decode_window(window.canonical) == window
    assert views["public_and_broker"].neighbours == "any-value"
    assert views["all_aggregators"].neighbours == "asymmetric"
    assert (
        "for value 1, value 3 replaced by value 2, value 3 or none, and none replaced by value 2, value 3 (that a"
        " device has value 2, or does not have value 1, is not protected)"
    ) in views["all_aggregators"].sentence
    assert not window.vector
    place = window.canonical.index(b"\x07" + fraction_bytes(Fraction(1, 3))) + 1 + len(fraction_bytes(Fraction(1, 3)))
    assert window.canonical[place : place + 3] == bytes((1, 2, 3))
    for wrong in (0, 4, 255):
        with pytest.raises(DecodeError, match="counts"):
            decode_window(window.canonical[:place] + bytes([wrong]) + window.canonical[place + 1 :])


def test_vector_mangat_uses_the_bits_circuit() -> None:
    window = every_window()["mangat_vector"]

    assert isinstance(window.mechanism, MangatVector)
    assert window.design.output_count == window.values + 1


def test_position_of_an_aggregator() -> None:
    window: Window = sampling_window(3)

    assert [window.position_of(name) for name in ("alpha", "beta", "gamma")] == [0, 1, 2]
    assert window.leader.aggregator_id == "alpha"
    with pytest.raises(QuestionError, match="does not list aggregator 'delta'"):
        window.position_of("delta")


def test_operators_are_compared_by_what_people_read() -> None:
    assert operator_key("  Stadt  WIEN ") == operator_key("stadt wien") == operator_key("ｓｔａｄｔ　wien")
    assert operator_key("Straße") == operator_key("STRASSE")
    assert operator_key("Wien") != operator_key("Graz")


@pytest.mark.parametrize("name", ["k_ary", "mangat_vector"])
def test_several_categories_at_once_are_told_in_direct_mode_alone(name: str) -> None:
    window = every_window()[name]

    with pytest.raises(QuestionError, match="a device has up to 2 categories in response mode, allowed: in direct"):
        replace(window, domain=replace(window.domain, most=2))

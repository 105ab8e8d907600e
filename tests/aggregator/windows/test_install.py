"""Which windows an aggregator takes on, from whom, and what the budget allows."""

import itertools
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount_aggregator.host.host import Limits
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.storage.question_rows import read_questions
from fleetcount_aggregator.windows.budget import (
    Charge,
    PeriodCharge,
    Unit,
    charge_of,
    check_budget,
    check_period,
    debit_row,
)
from fleetcount_aggregator.windows.question_install import install_question
from fleetcount_aggregator.windows.status import read_spent, read_status
from fleetcount_mechanisms.answers import Relation, Truth
from fleetcount_mechanisms.design import Design, LedgerLoss
from fleetcount_mechanisms.noise import OneSidedNoise
from fleetcount_mechanisms.responses import MangatVector
from fleetcount_protocol.errors import QuestionError, SignatureError
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.question.question import SignedQuestion, sign_question
from fleetcount_protocol.window.domain import Categories
from fleetcount_protocol.window.fields import Mode, Release, ReleaseKind

from tests.support.aggregators import START, Network, answer_all
from tests.support.protocol_samples import one_round_window

SEED = bytes(range(1, 33))


async def started(**limits: object) -> Network:
    network = Network(2, limits=Limits(**{"smallest_min_batch_size": 2, **limits}))  # type: ignore[arg-type]  # the test names fields of Limits.
    await network.start_all()
    return network


async def refused(network: Network, signed: SignedQuestion, match: str, seed: bytes = SEED) -> None:
    with pytest.raises((QuestionError, SignatureError), match=match):
        await install_question(network.core(0).context, signed, seed)
    assert not await network.core(0).context.store.read(read_questions)


async def test_a_window_needs_everybody_s_valid_signature() -> None:
    network = await started()
    signed, _ = network.once()

    await refused(network, replace(signed, signatures=(signed.signatures[0], b"")), "missing")
    await refused(network, replace(signed, signatures=(signed.signatures[0], bytes(64))), "does not verify")
    await refused(network, replace(signed, signatures=signed.signatures[::-1]), "does not verify")


async def test_a_window_with_another_s_signing_key_is_refused() -> None:
    network, stranger = await started(), Network(2)
    question = network.once()[0].question
    impostor = replace(question.aggregators[1], signing_public_key=stranger.seats[1].aggregator.signing_public_key)
    forged = replace(question, aggregators=(question.aggregators[0], impostor))
    keys = (network.seats[0].signing_key, stranger.seats[1].signing_key)

    signed = SignedQuestion(question=forged, signatures=tuple(sign_question(forged, key) for key in keys))

    await refused(network, signed, "another signing key")


async def test_a_window_under_an_untrusted_aggregator_is_refused() -> None:
    network, three = await started(), Network(3)
    await refused(network, three.once()[0], "trusted")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"deployment": "other"}, "deployment"),
        ({"min_batch_size": 9}, "min_batch_size is 9, allowed: at least 10"),
        (
            {"release": Release(kind=ReleaseKind.EXACT, noise_epsilon=None, level=Fraction(19, 20))},
            "no finite epsilon",
        ),
        (
            {"release": Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(9), level=Fraction(19, 20))},
            "at most 4",
        ),
    ],
)
async def test_a_window_beyond_the_operator_s_limits_is_refused(changes: dict[str, object], match: str) -> None:
    network = await started(smallest_min_batch_size=10)
    signed, _ = network.once(**{"min_batch_size": 10, **changes})

    await refused(network, signed, match)
    await refused(network, network.once(min_batch_size=10)[0], "seed of verify keys", bytes(32))


async def test_a_window_whose_round_one_is_over_is_refused() -> None:
    network = await started()
    signed, _ = network.once()
    network.clock.advance(20)

    await refused(network, signed, "past")


async def test_a_renamed_repeat_is_a_repeat() -> None:
    network = await started(largest_epsilon=Decimal("0.8"))
    await network.ask(values=4)

    with pytest.raises(QuestionError, match="sum to"):
        await network.ask(values=4, name="another name")
    with pytest.raises(QuestionError, match="sum to"):
        await network.ask(values=4, signal="VEHICLE.currentlocation")


async def test_other_signals_and_other_windows_are_no_repeat() -> None:
    network = await started(largest_epsilon=Decimal("0.8"))
    await network.ask(values=4)

    await network.ask(values=4, signal="Vehicle.Speed")
    await network.ask(
        values=4,
        round_one_opens=START + 30,
        round_one_closes=START + 40,
        round_two_closes=START + 50,
    )

    assert len(network.core(0).context.questions) == 3


async def test_an_aborted_window_gives_its_room_back_and_a_released_one_does_not() -> None:
    network = await started(largest_epsilon=Decimal("0.8"))
    long = {"round_one_closes": START + 200, "round_two_closes": START + 300}
    aborted = await network.ask(values=4)
    await network.run_to_the_end(aborted)
    assert network.core(0).context.windows.states[aborted.window_id] is WindowState.ABORTED

    released = await network.ask(values=4, name="second", round_one_opens=START + 10, **long)
    await answer_all(network, released, [(0, 1), (0, 2)])
    await network.run_to_the_end(released)

    await network.stop(0)
    await network.start(0)
    overlapping = network.once(
        values=4,
        name="third",
        round_one_opens=START + 290,
        round_one_closes=START + 50_000,
        round_two_closes=START + 60_000,
        expiry=START + 86_400,
    )[0]
    with pytest.raises(QuestionError, match="sum to"):
        await install_question(network.core(0).context, overlapping, SEED)


def charge(opens: int, closes: int, epsilon: str, relation: Relation = Relation.ANY_VALUE) -> Charge:
    loss = LedgerLoss(epsilon=Decimal(epsilon), relation=relation)
    return Charge(signals=("s",), opens=opens, closes=closes, loss=loss)


def test_a_vector_is_charged_for_a_value_that_moves_and_not_for_one_place() -> None:
    window = one_round_window(
        Mode.RESPONSE,
        domain=Categories(names=("a", "b", "c")),
        mechanism=MangatVector(Fraction(1, 10), 3),
        release=Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(1), level=Fraction(19, 20)),
    )

    assert charge_of(window).loss == LedgerLoss(epsilon=Decimal("1.77614"), relation=Relation.ANY_VALUE)
    assert debit_row(window, 0).epsilon == "1.77614"


@pytest.mark.parametrize(
    ("relation", "hidden"),
    [
        (Relation.ONE_SIDED, "a value behind none"),
        (Relation.ONE_SIDED_DOWN, "none behind a value"),
        (Relation.ASYMMETRIC, "a value behind those that hide it"),
    ],
)
def test_a_release_that_hides_one_way_only_is_taken_where_the_operator_says_so(relation: Relation, hidden: str) -> None:
    with pytest.raises(QuestionError, match=rf"hides {hidden} only \({relation.value}\).*allow_one_sided = true"):
        check_budget(charge(0, 10, "1", relation), [], Limits())
    check_budget(charge(0, 10, "1", relation), [], Limits(allow_one_sided=True))


def test_one_sided_losses_add_up_for_a_value_replaced_by_none() -> None:
    one = charge(0, 10, "1", Relation.ONE_SIDED)

    check_budget(one, [], Limits(allow_one_sided=True))
    with pytest.raises(QuestionError, match=r"epsilon 1 \(one-sided\).*sum to 3"):
        check_budget(one, [charge(0, 10, "2")], Limits(allow_one_sided=True, largest_epsilon=Decimal(2)))


def test_a_release_one_way_is_not_taken_beside_one_the_other_way_on_the_same_signal() -> None:
    up, down = (
        PeriodCharge(
            signals=("s",),
            design=Design(answer=Truth(2), noise=OneSidedNoise(Fraction(1, 10), side), values=2, aggregators=2),
            units=(Unit(0, 0, 1), Unit(60, 60, 1)),
        )
        for side in ("up", "down")
    )
    limits = Limits(allow_one_sided=True)

    for new, held in ((up, down), (down, up)):
        with pytest.raises(QuestionError, match="both together would promise nothing"):
            check_period(new, [held], limits)
        check_period(new, [new, replace(held, signals=("t",))], limits)
        check_period(
            new, [replace(held, units=(Unit(limits.budget_period_s + 60, limits.budget_period_s + 60, 1),))], limits
        )


def test_losses_with_a_delta_that_overlap_add_up_their_deltas() -> None:
    loss = LedgerLoss(epsilon=Decimal("0.3"), delta=Decimal("1E-9"), relation=Relation.ANY_VALUE)
    new = Charge(signals=("s",), opens=0, closes=10, loss=loss)

    check_budget(new, [charge(0, 10, "2"), replace(new, opens=10, closes=20)], Limits())
    with pytest.raises(QuestionError, match=r"delta 0\.000000001 and .* sum to 0\.000000002, allowed: at most 1e-09"):
        check_budget(new, [new], Limits())
    check_budget(new, [replace(new)], Limits(total_delta=Fraction(1, 10**8)))
    with pytest.raises(QuestionError, match=r"sum to 4\.3"):
        check_budget(new, [charge(0, 10, "4")], Limits())


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_budget_of_a_long_window_holds_in_whatever_order_short_ones_come(order: tuple[int, ...]) -> None:
    """Two short windows that do not touch each other both overlap the long one: a device of it answers all three."""
    windows = [(0, 100), (0, 10), (10, 20)]
    charges = [charge(opens, closes, "2") for opens, closes in windows]
    limits = Limits(largest_epsilon=Decimal(5))
    first, second, third = (charges[place] for place in order)

    check_budget(second, [first], limits)
    with pytest.raises(QuestionError, match="sum to 6"):
        check_budget(third, [first, second], limits)


@pytest.mark.parametrize(("opens", "fits"), [(19, False), (20, True), (21, True)])
def test_windows_that_touch_do_not_overlap(opens: int, fits: bool) -> None:
    one, two = charge(10, 20, "1"), charge(opens, 30, "1")
    limits = Limits(largest_epsilon=Decimal("1.5"))

    if fits:
        check_budget(two, [one], limits)
    else:
        with pytest.raises(QuestionError):
            check_budget(two, [one], limits)


@pytest.mark.parametrize(("opens", "said"), [(START + 10, "install_failed"), (START + 400, "stopped")])
async def test_a_question_that_a_helper_refuses_ends_says_who_refused_and_costs_nothing(
    opens: int, said: str, tmp_path: Path
) -> None:
    """Whether its window is decided about before the helper is asked, or after."""
    limits = Limits(smallest_min_batch_size=2, largest_epsilon=Decimal("0.8"), total_epsilon=Decimal("0.8"))
    network = Network(3, directory=tmp_path, limits=limits)
    network.seats[0].store_path = tmp_path / "aggregator.db"
    await network.start_all()
    network.core(2).context.host.limits = replace(limits, smallest_min_batch_size=1000)
    times = {"round_one_opens": opens, "round_one_closes": opens + 10, "round_two_closes": opens + 20}

    window = await network.ask(values=4, **times)
    await network.come_to(window)
    for _ in range(2):
        network.clock.advance(60)
        await network.look_after_all()

    for position in (0, 1):
        answer = await network.core(position).service.release(window.window_id)
        assert answer.state is WindowState.ABORTED
    assert (await network.core(0).service.release(window.window_id)).abort_reason == said
    assert not network.core(0).service.offered()
    place = StorePlace(directory=tmp_path)
    assert [one.refused_by for one in read_status(place).questions] == ["gamma"]
    assert not read_status(place).ledger
    assert read_spent(place, limits, network.clock.now()) == {}
    assert not network.core(0).scheduler.pending()
    network.core(2).context.host.limits = limits
    later = {name: moment + 300 for name, moment in times.items()}
    again = await network.ask(values=4, name="asked again", **later)
    await network.stop(0)
    await network.start(0)
    assert again.question.question_id in network.core(2).context.questions
    with pytest.raises(QuestionError, match=r"sum to|lose epsilon"):
        await network.ask(values=4, name="a third", **later)
    await network.stop_all()

"""What joining a question costs a device: one charge for every window it answers, or for every unit that shares a coin.

They follow from the signed question, the owner's policy and the time of joining, never from a truth, a coin or a place.
"""

from collections.abc import Iterable
from functools import lru_cache

from fleetcount_mechanisms.accounting.charges import charge_relation, unit_loss, window_loss
from fleetcount_mechanisms.accounting.exposure import exposure_of
from fleetcount_mechanisms.accounting.vectors import LossVector
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_protocol.question.fields import Coin
from fleetcount_protocol.question.question import Question

from fleetcount_client.charges import Charge
from fleetcount_client.ledger import budget_of
from fleetcount_client.panel_coin import unit_id
from fleetcount_client.policy import OwnerPolicy


def charges_of_question(
    question: Question, policy: OwnerPolicy, begin: float, unknown_before: float, skipped: Iterable[range] = ()
) -> tuple[Charge, ...]:
    """Return the charges of a question for a device that joins so that it answers from `begin` on (Unix seconds).

    A unit is charged for the windows that are left of it. One that began before `unknown_before` is left out: this
    device may have answered in it with a coin it has forgotten.
    """
    cost = _Cost(question, policy)
    units = open_units(question, begin, skipped)
    opens = question.schedule.opens
    members = question.schedule.units(question.coin)
    return tuple(
        cost.charge(unit, windows) for unit, windows in units.items() if opens(members[unit][0]) >= unknown_before
    )


def open_units(question: Question, begin: float, skipped: Iterable[range] = ()) -> dict[int, tuple[int, ...]]:
    """Return the windows of every unit whose first round has not closed at `begin` and that no order skips."""
    left_out = {index for one in skipped for index in one}
    schedule = question.schedule
    found = {
        unit: tuple(i for i in windows if schedule.opens(i) + schedule.round_one_s > begin and i not in left_out)
        for unit, windows in schedule.units(question.coin).items()
    }
    return {unit: windows for unit, windows in found.items() if windows}


class _Cost:
    def __init__(self, question: Question, policy: OwnerPolicy) -> None:
        self._question = question
        self._policy = policy
        self._orders = budget_of(policy).orders

    def charge(self, unit: int, windows: tuple[int, ...]) -> Charge:
        question, design = self._question, self._question.design
        loss = _loss(design, self._orders, len(windows), question.coin is Coin.WINDOW)
        exposure = exposure_of(design.exposure, len(windows))
        pure = loss is not None and loss.pure is not None and len(windows) == 1
        return Charge(
            charge_id=unit_id(question.question_id, unit),
            name=question.name,
            signal=question.signal,
            asked_at=question.schedule.opens(windows[0]),
            asked_until=question.schedule.opens(windows[-1]) + question.schedule.round_one_s,
            epsilon=design.ledger_loss.epsilon if pure else None,
            exposure=exposure.chance,
            answers=exposure.answers,
            relation=charge_relation(design),
            promise=self._policy.promise,
            loss=loss,
            question_id=question.question_id,
            sent=False,
        )


@lru_cache(maxsize=256)
def _loss(design: Design, orders: tuple[int, ...], windows: int, fresh_coins: bool) -> LossVector | None:
    try:
        return (window_loss if fresh_coins else unit_loss)(design, orders, windows)
    except MechanismError:
        return None

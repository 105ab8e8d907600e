"""What this aggregator's questions were charged, and whether one more fits beside them.

Reads what is known of them; the rules are those of `budget` and `period_budget`. It must not install.
"""

import asyncio
from collections.abc import Sequence

from fleetcount_protocol.errors import QuestionError
from fleetcount_protocol.window.domain import normal_signal

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.installed_question import InstalledQuestion
from fleetcount_aggregator.storage.store import Charged, Cost
from fleetcount_aggregator.windows.budget import Charge, charge_of_question, check_budget
from fleetcount_aggregator.windows.period_budget import PeriodCharge, check_period, question_charge


async def check_budgets(context: Context, new: Charge, whole: PeriodCharge) -> None:
    """Refuse a question that is too much beside what overlaps it, or within a period.

    What counts: every question but those that cost nothing; a window counts with its question.

    Raises:
        QuestionError: with the sum and the limit.
    """
    _check_charges_known(context)
    # Looked at first: thousands of questions on other signals must not be taken apart into their windows.
    on_signal = [one for one in context.questions.values() if normal_signal(one.asked.signal) == whole.signal]
    questions = await _costing(context, on_signal)
    check_budget(new, [charge_of_question(one.asked, one.stopped) for one in questions], context.limits)
    others = [question_charge(one.asked, one.stopped) for one in questions]
    # A year of hours takes a second: reports go on being taken meanwhile.
    await asyncio.to_thread(check_period, whole, others, context.limits)


async def _costing(context: Context, questions: Sequence[InstalledQuestion]) -> Sequence[InstalledQuestion]:
    """Return the questions that cost something; the store is asked once, and not about those that are known to."""
    unknown = [one for one in questions if not one.was_debited]
    asked = [Charged(one.question_id, one.asked.schedule.windows, one.was_withdrawn) for one in unknown]
    costs = dict(zip((one.question_id for one in unknown), await context.store.costs(asked), strict=True))
    for one in unknown:
        one.was_debited = costs[one.question_id] is Cost.DEBITED
    # Whether one in quarantine was released may be what is damaged.
    doubtful = {one.window.question.question_id for one in context.quarantined.values() if one.window is not None}
    return [one for one in questions if one.question_id in doubtful or costs.get(one.question_id) is not Cost.NOTHING]


def _check_charges_known(context: Context) -> None:
    """Take nothing on while something is damaged or lacking that may have been charged for.

    Raises:
        QuestionError: something is.
    """
    if context.adopting:
        raise QuestionError(
            "the store was put back from a backup, and what was charged since is not known; allowed again once every"
            " configured peer has shown what it knows"
        )
    unknown = [*context.unknown_charges, *(one.damage for one in context.quarantined.values() if one.window is None)]
    if unknown:
        raise QuestionError(
            f"what was charged is not known, since in the store {unknown[0]}, {len(unknown)} in all; allowed again"
            " after `fleetcount aggregator repair`"
        )

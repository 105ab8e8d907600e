"""What another aggregator is shown of what both take part in, when its store was put back from a backup.

Shows what all have signed, and to who is named in it alone; how a window ended it asks by itself (`outcomes`). It must
not take anything up (`adoption`).
"""

from fleetcount_protocol.errors import PeerProblem
from fleetcount_protocol.ids import AggregatorId, QuestionId
from fleetcount_protocol.limits import MAX_QUESTIONS
from fleetcount_protocol.messages import InstallQuestion
from fleetcount_protocol.shared import SharedIds

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.peers import PeerRefusalError


def shared_ids(context: Context, caller: AggregatorId, after: QuestionId | None) -> SharedIds:
    """Return which of the next question, by id above one, the caller is one of the aggregators of."""
    ids = sorted(one.question_id for one in context.questions.values() if caller in one.others)
    above = [one for one in ids if after is None or one > after]
    return SharedIds(question_ids=tuple(above[:MAX_QUESTIONS]), more=len(above) > MAX_QUESTIONS)


async def shared_question(context: Context, caller: AggregatorId, question_id: QuestionId) -> InstallQuestion:
    """Return a question as all have signed it, with what all its aggregators hold: the seed and the orders.

    Raises:
        PeerRefusalError: UNKNOWN_WINDOW, there is none, or the caller is not one of its aggregators.
    """
    question = context.questions.get(question_id)
    if question is None or caller not in question.others:
        raise PeerRefusalError(PeerProblem.UNKNOWN_WINDOW)
    return InstallQuestion(signed=question.signed, seed=question.seed, orders=question.orders)

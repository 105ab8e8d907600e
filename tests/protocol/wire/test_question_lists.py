"""What a query for questions and its answer may say together."""

import pytest
from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.v1.device_pb2 import ListQuestionsRequest, ListQuestionsResponse
from fleetcount_protocol.wire.question import QUESTION_LIST, QUESTION_LIST_QUERY

from tests.support.wire_messages import MESSAGES


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"held": bytes(31)}, "held has 31 bytes"),
        ({"held": bytes(33)}, "held has 33 bytes"),
        ({"held": bytes(32), "after": bytes(32)}, "says what is held and asks for a later list"),
        ({"held": bytes(32), "over": True}, "says what is held and asks for a later list, or for what is over"),
    ],
)
def test_a_query_says_what_is_held_by_one_digest_and_for_the_first_list_alone(
    changes: dict[str, object], words: str
) -> None:
    query = ListQuestionsRequest(aggregator_id="alpha", deployment="test", **changes)  # type: ignore[arg-type]

    with pytest.raises(DecodeError, match=words):
        QUESTION_LIST_QUERY.decode(query.SerializeToString())


@pytest.mark.parametrize(("name", "words"), [("list_more", "has 1 offers and more"), ("list", "has 2 offers")])
def test_an_unchanged_list_holds_nothing_and_has_nothing_to_come(name: str, words: str) -> None:
    message, value = MESSAGES[f"question_{name}"]
    listed = ListQuestionsResponse.FromString(message.encode(value))
    listed.unchanged = True

    with pytest.raises(DecodeError, match=words):
        QUESTION_LIST.decode(listed.SerializeToString())

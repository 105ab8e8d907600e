"""Topics return to what they were built from; nothing else is a topic."""

import pytest
from fleetcount_protocol.errors import DecodeError, UsageError
from fleetcount_protocol.ids import AggregatorId, SeriesId, SessionId, TaskId
from fleetcount_protocol.wire import topics
from hypothesis import given
from hypothesis import strategies as st

from tests.support.protocol_samples import seed_bytes

TASK = TaskId(seed_bytes("task"))
SESSION = SessionId(seed_bytes("session", 16))
PARSERS = (
    topics.parse_receipt_topic,
    topics.parse_report_topic,
    topics.parse_series_topic,
    topics.parse_session_reply_topic,
    topics.parse_session_topic,
    topics.parse_task_topic,
)
DEPLOYMENTS = st.from_regex(r"[a-z0-9][a-z0-9-]{0,31}", fullmatch=True)


@given(DEPLOYMENTS, st.binary(min_size=32, max_size=32), st.integers(0, 4))
def test_task_topics_return(deployment: str, task: bytes, position: int) -> None:
    task_id = TaskId(task)

    assert topics.parse_task_topic(topics.task_topic(deployment, task_id)) == (deployment, task_id)
    series_id = SeriesId(task)
    offered = topics.series_topic(deployment, series_id, position)
    assert topics.parse_series_topic(offered) == (deployment, series_id, position)
    assert topics.parse_report_topic(topics.report_topic(deployment, task_id, position)) == (
        deployment,
        task_id,
        position,
    )


@given(DEPLOYMENTS, st.binary(min_size=16, max_size=16), st.from_regex(r"[a-z][a-z0-9-]{0,31}", fullmatch=True))
def test_session_topics_return(deployment: str, session: bytes, name: str) -> None:
    session_id, aggregator_id = SessionId(session), AggregatorId(name)

    assert topics.parse_receipt_topic(topics.receipt_topic(deployment, session_id)) == (deployment, session_id)
    reply = topics.session_reply_topic(deployment, session_id)
    assert topics.parse_session_reply_topic(reply) == (deployment, session_id)
    assert topics.parse_session_topic(topics.session_topic(deployment, aggregator_id)) == (deployment, aggregator_id)


def test_topics_are_what_wire_md_says() -> None:
    hexadecimal = TASK.hex()

    assert topics.task_topic("bologna", TASK) == f"fleetcount/v1/bologna/{hexadecimal}/task"
    assert topics.task_filter("bologna") == "fleetcount/v1/bologna/+/task"
    assert topics.release_topic("bologna", TASK) == f"fleetcount/v1/bologna/{hexadecimal}/release"
    assert topics.report_topic("bologna", TASK, 1) == f"fleetcount/v1/bologna/{hexadecimal}/agg/1/report"
    series = topics.series_topic("bologna", SeriesId(TASK), 0)
    assert series == f"fleetcount/v1/bologna/{hexadecimal}/agg/0/series"
    assert topics.series_filter("bologna") == "fleetcount/v1/bologna/+/agg/+/series"
    assert topics.receipt_topic("bologna", SESSION) == f"fleetcount/v1/bologna/receipt/{SESSION.hex()}"
    assert topics.session_topic("bologna", AggregatorId("alpha")) == "fleetcount/v1/bologna/session/alpha"
    assert topics.session_reply_topic("bologna", SESSION) == f"fleetcount/v1/bologna/session-reply/{SESSION.hex()}"


def variants(topic: str) -> list[str]:
    return [
        "",
        "/",
        "#",
        "$SYS/broker",
        "x" * 65_535,
        topic + "/",
        "/" + topic,
        topic.upper(),
        topic + "\0",
        topic + "\n",
        topic.replace("bologna", "+"),
        topic.replace("bologna", "#"),
        topic.replace("bologna", ""),
        topic.replace("bologna", "bo/logna"),
        topic.replace("bologna", "bolognä"),
        topic.replace("/v1/", "/v2/"),
        topic.replace(TASK.hex(), TASK.hex()[:-1]),
        topic.replace(TASK.hex(), TASK.hex().upper()),
        topic.replace(SESSION.hex(), SESSION.hex() + "00"),
        topic.replace("/agg/1/", "/agg/5/"),
        topic.replace("/agg/1/", "/agg/01/"),
        topic.replace("/agg/1/", "/agg/-1/"),
        topic.replace("/agg/1/", "/agg/１/"),
        topic.replace("alpha", "Alpha"),
        f"$share/group/{topic}",
    ]


@pytest.mark.parametrize("parser", PARSERS)
def test_everything_else_is_refused(parser: object) -> None:
    good = {
        topics.task_topic("bologna", TASK): topics.parse_task_topic,
        topics.report_topic("bologna", TASK, 1): topics.parse_report_topic,
        topics.series_topic("bologna", SeriesId(TASK), 1): topics.parse_series_topic,
        topics.receipt_topic("bologna", SESSION): topics.parse_receipt_topic,
        topics.session_reply_topic("bologna", SESSION): topics.parse_session_reply_topic,
        topics.session_topic("bologna", AggregatorId("alpha")): topics.parse_session_topic,
        topics.release_topic("bologna", TASK): None,
    }
    for topic, own in good.items():
        for variant in {*variants(topic), topic} - ({topic} if own is parser else set()):
            if own is parser and variant == topic:
                continue
            with pytest.raises(DecodeError):
                parser(variant)  # type: ignore[operator]  # Each parameter is one of PARSERS.


@pytest.mark.parametrize("name", ["", "+", "#", "a/b", "A", "a" * 33, "ä"])
def test_no_wildcard_gets_into_a_topic(name: str) -> None:
    for build in (topics.task_topic, topics.release_topic):
        with pytest.raises(UsageError, match="deployment"):
            build(name, TASK)


@pytest.mark.parametrize("position", [-1, 5])
def test_report_topic_has_five_places(position: int) -> None:
    with pytest.raises(UsageError, match="position"):
        topics.report_topic("bologna", TASK, position)
    with pytest.raises(UsageError, match="position"):
        topics.series_topic("bologna", SeriesId(TASK), position)

"""Topics return to what they were built from; nothing else is a topic."""

import pytest
from fleetcount_protocol.errors import DecodeError, UsageError
from fleetcount_protocol.ids import AggregatorId, QuestionId, SessionId, UserName, WindowId
from fleetcount_protocol.wire import topics
from fleetcount_protocol.wire.topics import TopicKind, parse_topic
from hypothesis import given
from hypothesis import strategies as st

from tests.support.protocol_samples import seed_bytes

WINDOW = WindowId(seed_bytes("window"))
SESSION = SessionId(seed_bytes("session", 16))
ALPHA = AggregatorId("alpha")
CAR = UserName("d-1")
DEPLOYMENTS = st.from_regex(r"[a-z0-9][a-z0-9-]{0,31}", fullmatch=True)
AGGREGATORS = st.from_regex(r"[a-z][a-z0-9-]{0,31}", fullmatch=True).map(AggregatorId)
USERS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True).map(UserName)


@given(DEPLOYMENTS, AGGREGATORS, USERS, st.binary(min_size=32, max_size=32))
def test_topics_return(deployment: str, name: AggregatorId, user: UserName, data: bytes) -> None:
    window_id, question_id, session_id = WindowId(data), QuestionId(data), SessionId(data[:16])
    built = {
        (TopicKind.RELEASE, None, data): topics.release_topic(deployment, name, window_id),
        (TopicKind.QUESTION, None, data): topics.question_topic(deployment, name, question_id),
        (TopicKind.SESSION, user, b""): topics.session_topic(deployment, name, user),
        (TopicKind.REPORT, user, data): topics.report_topic(deployment, name, user, window_id),
        (TopicKind.SESSION_REPLY, user, data[:16]): topics.session_reply_topic(deployment, name, user, session_id),
        (TopicKind.RECEIPT, user, data[:16]): topics.receipt_topic(deployment, name, user, session_id),
    }

    for (kind, whose, subject), topic in built.items():
        assert len(topic) <= topics.MAX_TOPIC_BYTES
        assert parse_topic(topic) == topics.Topic(kind, deployment, name, whose, subject)


def test_topics_are_what_wire_md_says() -> None:
    base, window, session = "fleetcount/v1/bologna", WINDOW.hex(), SESSION.hex()

    assert topics.release_topic("bologna", ALPHA, WINDOW) == f"{base}/alpha/release/{window}"
    assert topics.question_topic("bologna", ALPHA, QuestionId(WINDOW)) == f"{base}/alpha/question/{window}"
    assert topics.question_filter("bologna") == f"{base}/+/question/+"
    assert topics.session_topic("bologna", ALPHA, CAR) == f"{base}/alpha/session/0/d-1"
    assert topics.session_filters("bologna", ALPHA) == [f"{base}/alpha/session/+/+"]
    assert topics.session_filters("bologna", ALPHA, 7, 8) == [f"{base}/alpha/session/{one}/+" for one in "7f"]
    assert topics.report_topic("bologna", ALPHA, CAR, WINDOW) == f"{base}/alpha/report/0/d-1/{window}"
    assert topics.report_filters("bologna", ALPHA, WINDOW) == [f"{base}/alpha/report/+/+/{window}"]
    assert topics.report_filters("bologna", ALPHA, WINDOW, 15, 16) == [f"{base}/alpha/report/f/+/{window}"]
    assert topics.session_reply_topic("bologna", ALPHA, CAR, SESSION) == f"{base}/alpha/session-reply/d-1/{session}"
    assert topics.session_reply_filter("bologna", CAR) == f"{base}/+/session-reply/d-1/+"
    assert topics.receipt_topic("bologna", ALPHA, CAR, SESSION) == f"{base}/alpha/receipt/d-1/{session}"
    assert topics.receipt_filter("bologna", CAR) == f"{base}/+/receipt/d-1/+"
    assert topics.receipt_filter("bologna", None) == f"{base}/+/receipt/+/+"


def variants(topic: str) -> list[str]:
    return [
        "",
        "/",
        "#",
        "$SYS/broker",
        "x" * 65_535,
        topic + "/",
        topic + "/d-1",
        "/" + topic,
        topic.rpartition("/")[0],
        topic.upper(),
        topic + "\0",
        topic + "\n",
        topic.replace("bologna", "+"),
        topic.replace("bologna", "#"),
        topic.replace("bologna", ""),
        topic.replace("bologna", "bo/logna"),
        topic.replace("bologna", "bolognä"),
        topic.replace("/v1/", "/v2/"),
        topic.replace(WINDOW.hex(), WINDOW.hex()[:-1]),
        topic.replace(WINDOW.hex(), WINDOW.hex().upper()),
        topic.replace(WINDOW.hex(), SESSION.hex()),
        topic.replace(SESSION.hex(), SESSION.hex() + "00"),
        topic.replace(SESSION.hex(), SESSION.hex()[:-1] + "１"),
        topic.replace("alpha", "Alpha"),
        topic.replace("alpha", "+"),
        topic.replace("d-1", ""),
        topic.replace("d-1", "+"),
        topic.replace("d-1", "#"),
        topic.replace("d-1", "$SYS"),
        topic.replace("d-1", "d-1/d-1"),
        topic.replace("d-1", "d-1\n"),
        topic.replace("d-1", "ä"),
        topic.replace("d-1", "d" * 65),
        *(topic.replace("/0/", f"/{one}/") for one in (*"123456789abcdef", "", "00", "+", "g", "-0", "０")),
        topic.replace("/0/", "/"),
        topic.replace("/0/d-1", "/d-1/0"),
        f"$share/group/{topic}",
    ]


@pytest.mark.parametrize(
    "topic",
    [
        topics.release_topic("bologna", ALPHA, WINDOW),
        topics.question_topic("bologna", ALPHA, QuestionId(WINDOW)),
        topics.session_topic("bologna", ALPHA, CAR),
        topics.report_topic("bologna", ALPHA, CAR, WINDOW),
        topics.session_reply_topic("bologna", ALPHA, CAR, SESSION),
        topics.receipt_topic("bologna", ALPHA, CAR, SESSION),
    ],
)
def test_everything_else_is_refused(topic: str) -> None:
    for variant in {*variants(topic)} - {topic}:
        with pytest.raises(DecodeError):
            parse_topic(variant)
    other = {one for one in TopicKind if one is not parse_topic(topic).kind}
    for kind in other:
        changed = topic.replace(f"/{parse_topic(topic).kind}/", f"/{kind}/")
        try:
            assert parse_topic(changed).kind is kind
        except DecodeError:
            continue


@pytest.mark.parametrize(("name", "bucket"), [("d-1", "0"), ("car", "2"), ("A", "5"), ("thief", "8"), ("d.9_x", "d")])
def test_the_bucket_is_the_first_digit_of_the_digest_of_the_name(name: str, bucket: str) -> None:
    user, place = UserName(name), "fleetcount/v1/bologna/alpha"

    assert topics.user_bucket(user) == int(bucket, 16)
    assert topics.session_topic("bologna", ALPHA, user) == f"{place}/session/{bucket}/{name}"
    assert topics.report_topic("bologna", ALPHA, user, WINDOW) == f"{place}/report/{bucket}/{name}/{WINDOW.hex()}"
    for digit in set("0123456789abcdef") - {bucket}:
        for topic in (f"{place}/session/{digit}/{name}", f"{place}/report/{digit}/{name}/{WINDOW.hex()}"):
            with pytest.raises(DecodeError, match="not its user's"):
                parse_topic(topic)


def matches(topic: str, filters: list[str]) -> int:
    """Return how many filters of one level at a time a topic matches."""
    levels = [one.split("/") for one in filters]
    return sum(
        len(one) == len(topic.split("/")) and all(a in ("+", b) for a, b in zip(one, topic.split("/"), strict=True))
        for one in levels
    )


@given(USERS, st.integers(1, topics.BUCKETS))
def test_every_user_is_read_by_one_slot_once(user: UserName, slots: int) -> None:
    session, report = topics.session_topic("bologna", ALPHA, user), topics.report_topic("bologna", ALPHA, user, WINDOW)

    sessions = [matches(session, topics.session_filters("bologna", ALPHA, slot, slots)) for slot in range(slots)]
    reports = [matches(report, topics.report_filters("bologna", ALPHA, WINDOW, slot, slots)) for slot in range(slots)]

    assert sessions == reports == [slot == topics.user_bucket(user) % slots for slot in range(slots)]


@pytest.mark.parametrize(("slot", "slots"), [(0, 0), (-1, 2), (2, 2), (16, 16), (0, 17)])
def test_there_are_1_to_16_slots(slot: int, slots: int) -> None:
    with pytest.raises(UsageError, match="allowed are 1 to 16 slots"):
        topics.session_filters("bologna", ALPHA, slot, slots)
    with pytest.raises(UsageError, match="allowed are 1 to 16 slots"):
        topics.report_filters("bologna", ALPHA, WINDOW, slot, slots)


@pytest.mark.parametrize("name", ["", "+", "#", "a/b", "A", "a" * 33, "ä"])
def test_no_wildcard_gets_into_a_topic(name: str) -> None:
    with pytest.raises(UsageError, match="deployment"):
        topics.release_topic(name, ALPHA, WINDOW)


@pytest.mark.parametrize("name", ["", "+", "#", "a/b", "$SYS", "%u", "a b", "-a", ".", "ä", "a\0", "a\n", "a" * 65])
def test_a_user_name_means_nothing_in_a_topic_or_an_access_rule(name: str) -> None:
    with pytest.raises(DecodeError, match="user name"):
        UserName(name)

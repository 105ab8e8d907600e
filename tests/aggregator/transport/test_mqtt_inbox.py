"""What waits at an MQTT connection: each user in a line of its own, with a share of the room, cheap to turn away."""

import asyncio
import time

import pytest
from fleetcount_aggregator.host.metrics import Metrics
from fleetcount_aggregator.transport.mqtt_inbox import Inbox
from fleetcount_protocol.ids import AggregatorId, UserName, WindowId
from fleetcount_protocol.limits import MAX_INSTALMENT_BYTES, MAX_SESSION_BYTES
from fleetcount_protocol.wire.topics import TopicKind, receipt_filter, release_topic, report_topic, session_topic
from fleetcount_transport.admission.admission import Admission
from fleetcount_transport.admission.identity import Identity
from fleetcount_transport.mqtt_packets import Publication

ALPHA = AggregatorId("alpha")
WINDOW = WindowId(bytes(32))


class Waiting:
    """An inbox with its metrics, the faults of its users, and how often it asked to be held up and let go."""

    def __init__(self) -> None:
        self.metrics, self.admission, self.slowed = Metrics(), Admission(), list[bool]()
        self.inbox = Inbox("test", ALPHA, self.admission, self.metrics, self.slowed.append)

    def session(self, user: str, payload: bytes = b"request") -> bool:
        return self.inbox.put(Publication(session_topic("test", ALPHA, UserName(user)), payload, packet_id=1))

    def report(self, user: str, payload: bytes = b"report") -> bool:
        return self.inbox.put(Publication(report_topic("test", ALPHA, UserName(user), WINDOW), payload, packet_id=1))

    def counted(self, name: str) -> float:
        rows = [row for row in self.metrics.render().decode().splitlines() if row.startswith(name)]
        return sum(float(row.rpartition(" ")[2]) for row in rows)


async def test_one_user_s_flood_is_shed_and_the_next_user_is_first() -> None:
    waiting = Waiting()
    began = time.process_time()

    kept = sum(not waiting.session("hog", bytes(500)) for _ in range(20_000))
    spent = time.process_time() - began
    assert not waiting.session("car")
    served = await waiting.inbox.take(TopicKind.SESSION, 2)

    assert kept <= 256
    assert waiting.counted('fleetcount_shed_total{reason="calls"}') == 20_000 - kept
    assert [one.user for one in served] == ["hog", "car"]
    assert spent < 20_000 * 200e-6, "each of a flood is turned away in microseconds"


async def test_many_floods_leave_room_for_every_newcomer() -> None:
    waiting = Waiting()
    for number in range(16):
        for _ in range(400):
            waiting.report(f"hog-{number}", bytes(1_000))

    assert [waiting.report(f"car-{number}") for number in range(500)] == [False] * 500
    taken = await waiting.inbox.take(TopicKind.REPORT, 516)

    assert {one.user for one in taken} == {f"car-{n}" for n in range(500)} | {f"hog-{n}" for n in range(16)}
    assert waiting.slowed == []


async def test_users_take_turns_and_keep_their_own_order() -> None:
    waiting = Waiting()
    for number in range(3):
        waiting.report("hog", bytes([number]))
    waiting.report("car", b"x")

    taken = await waiting.inbox.take(TopicKind.REPORT, 10)

    assert [(one.user, one.message.payload) for one in taken] == [
        ("hog", b"\0"),
        ("car", b"x"),
        ("hog", b"\1"),
        ("hog", b"\2"),
    ]
    assert {one.subject for one in taken} == {WINDOW}


async def test_requests_for_sessions_and_reports_do_not_wait_for_each_other() -> None:
    waiting = Waiting()
    waiting.session("hog")
    soon = asyncio.create_task(waiting.inbox.take(TopicKind.REPORT, 10))
    await asyncio.sleep(0)
    assert not soon.done()
    waiting.report("car")

    assert [one.user for one in await soon] == ["car"]


async def test_bytes_are_bounded_and_a_room_full_of_newcomers_holds_the_broker_up() -> None:
    waiting = Waiting()
    number = 0
    while not waiting.slowed:
        assert not waiting.report(f"car-{number}", bytes(MAX_INSTALMENT_BYTES))
        number += 1
    assert waiting.slowed == [True]
    assert number * MAX_INSTALMENT_BYTES <= 12 << 20

    taken = await waiting.inbox.take(TopicKind.REPORT, number // 2)
    assert waiting.slowed == [True], "what is under way is in memory still"
    waiting.inbox.done(taken)

    assert waiting.slowed == [True, False]
    assert waiting.counted("fleetcount_shed_total") == 0


async def test_a_user_whose_messages_failed_is_turned_away_and_no_other() -> None:
    waiting = Waiting()
    waiting.admission.failed(Identity(b"thief"), 64)

    assert waiting.session("thief")
    assert waiting.report("thief")
    assert not waiting.session("car")


@pytest.mark.parametrize(
    ("topic", "payload", "retain"),
    [
        (session_topic("test", AggregatorId("beta"), UserName("car")), b"", False),
        (session_topic("other", ALPHA, UserName("car")), b"", False),
        (session_topic("test", ALPHA, UserName("car")), b"", True),
        (session_topic("test", ALPHA, UserName("car")), bytes(MAX_SESSION_BYTES + 1), False),
        (report_topic("test", ALPHA, UserName("car"), WINDOW), bytes(MAX_INSTALMENT_BYTES + 1), False),
        (release_topic("test", ALPHA, WINDOW), b"", False),
        (receipt_filter("test", None), b"", False),
        ("elsewhere", b"", False),
    ],
)
async def test_what_no_device_may_send_here_is_counted_and_gone(topic: str, payload: bytes, retain: bool) -> None:
    waiting = Waiting()

    assert waiting.inbox.put(Publication(topic, payload, retain, 1))
    assert waiting.counted("fleetcount_poison_messages_total") == 1

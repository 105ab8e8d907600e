"""A report's name belongs to the device and the task it was drawn for, and says where the report is kept."""

from collections import Counter
from hashlib import sha256

from fleetcount_mechanisms.randomness import SeededRandom, SystemRandom
from fleetcount_protocol.channel import report_ids
from fleetcount_protocol.channel.report_ids import (
    REPORT_ID_RANDOM_BYTES,
    REPORT_ID_SHARD_BYTES,
    new_report_id,
    owns,
)
from fleetcount_protocol.ids import Digest, ReportId, TaskId

ONE, OTHER = Digest(b"1" * 32), Digest(b"2" * 32)
TASK, ANOTHER = TaskId(b"t" * 32), TaskId(b"u" * 32)


def test_a_name_is_its_device_s_and_its_task_s_alone() -> None:
    for _ in range(200):
        name = new_report_id(TASK, ONE, SystemRandom())

        assert owns(TASK, ONE, name)
        assert not owns(TASK, OTHER, name)
        assert not owns(ANOTHER, ONE, name)
        for at in range(ReportId.SIZE):
            assert not owns(TASK, ONE, name[:at] + bytes([name[at] ^ 1]) + name[at + 1 :])


def test_a_device_cannot_make_a_name_with_another_beginning() -> None:
    """It can compute the bound end of any beginning; only its own beginning passes, and of that all four bytes."""
    own = new_report_id(TASK, ONE, SystemRandom())
    for at in range(REPORT_ID_SHARD_BYTES):
        named = own[:at] + bytes([own[at] ^ 0x80]) + own[at + 1 : 12]

        assert not owns(TASK, ONE, named + report_ids._bound(ONE, named))
    assert owns(TASK, ONE, own[:12] + report_ids._bound(ONE, own[:12]))


def test_a_device_s_names_for_one_task_begin_alike_and_those_of_devices_and_tasks_fall_everywhere() -> None:
    size = REPORT_ID_SHARD_BYTES
    again = {new_report_id(TASK, ONE, SystemRandom())[:size] for _ in range(10)}
    devices = Counter(new_report_id(TASK, Digest(n.to_bytes(32)), SystemRandom())[0] for n in range(8192))
    tasks = Counter(new_report_id(TaskId(n.to_bytes(32)), ONE, SystemRandom())[0] for n in range(8192))

    assert len(again) == 1
    for found in (devices, tasks):  # 32 are expected of each.
        assert len(found) == 256
        assert max(found.values()) < 80


def test_names_are_as_random_as_they_say_and_the_layout_is_this_one() -> None:
    name = new_report_id(TASK, ONE, SeededRandom(7))
    drawn = SeededRandom(7).random_bytes(REPORT_ID_RANDOM_BYTES)
    shard = sha256(b"fleetcount v2 report shard" + TASK + ONE).digest()[:4]

    assert name == shard + drawn + sha256(b"fleetcount v2 report id" + ONE + shard + drawn).digest()[:4]
    assert len({new_report_id(TASK, ONE, SystemRandom()) for _ in range(1000)}) == 1000

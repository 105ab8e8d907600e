"""A report's name belongs to the device and the window it was drawn for, and says where the report is kept."""

from collections import Counter
from hashlib import sha256

from fleetcount_mechanisms.randomness import SeededRandom, SystemRandom
from fleetcount_protocol import ids
from fleetcount_protocol.ids import (
    REPORT_ID_PREFIX_BYTES,
    REPORT_ID_RANDOM_BYTES,
    Digest,
    ReportId,
    WindowId,
    new_report_id,
    owns,
)

ONE, OTHER = Digest(b"1" * 32), Digest(b"2" * 32)
WINDOW, ANOTHER = WindowId(b"t" * 32), WindowId(b"u" * 32)


def test_a_name_is_its_device_s_and_its_window_s_alone() -> None:
    for _ in range(200):
        name = new_report_id(WINDOW, ONE, SystemRandom())

        assert owns(WINDOW, ONE, name)
        assert not owns(WINDOW, OTHER, name)
        assert not owns(ANOTHER, ONE, name)
        for at in range(ReportId.SIZE):
            assert not owns(WINDOW, ONE, name[:at] + bytes([name[at] ^ 1]) + name[at + 1 :])


def test_a_device_cannot_make_a_name_with_another_beginning() -> None:
    """It can compute the bound end of any beginning; only its own beginning passes, and of that all four bytes."""
    own = new_report_id(WINDOW, ONE, SystemRandom())
    for at in range(REPORT_ID_PREFIX_BYTES):
        named = own[:at] + bytes([own[at] ^ 0x80]) + own[at + 1 : 12]

        assert not owns(WINDOW, ONE, named + ids._bound(ONE, named))
    assert owns(WINDOW, ONE, own[:12] + ids._bound(ONE, own[:12]))


def test_a_device_s_names_for_one_window_begin_alike_and_those_of_devices_and_windows_fall_everywhere() -> None:
    size = REPORT_ID_PREFIX_BYTES
    again = {new_report_id(WINDOW, ONE, SystemRandom())[:size] for _ in range(10)}
    devices = Counter(new_report_id(WINDOW, Digest(n.to_bytes(32)), SystemRandom())[0] for n in range(8192))
    windows = Counter(new_report_id(WindowId(n.to_bytes(32)), ONE, SystemRandom())[0] for n in range(8192))

    assert len(again) == 1
    for found in (devices, windows):  # 32 are expected of each.
        assert len(found) == 256
        assert max(found.values()) < 80


def test_names_are_as_random_as_they_say_and_the_layout_is_this_one() -> None:
    name = new_report_id(WINDOW, ONE, SeededRandom(7))
    drawn = SeededRandom(7).random_bytes(REPORT_ID_RANDOM_BYTES)
    prefix = sha256(b"fleetcount v2 report shard" + WINDOW + ONE).digest()[:4]

    assert name == prefix + drawn + sha256(b"fleetcount v2 report id" + ONE + prefix + drawn).digest()[:4]
    assert len({new_report_id(WINDOW, ONE, SystemRandom()) for _ in range(1000)}) == 1000

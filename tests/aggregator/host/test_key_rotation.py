"""When sealing keys follow each other: no window is ever without a key, and no key lives for ever."""

from pathlib import Path

import pytest
from fleetcount_aggregator.host.key_rotation import NextKey, Rotation, add_key, erase_key, write_validities
from fleetcount_aggregator.host.keys import KeyRing, Validity
from fleetcount_protocol.limits import MAX_UNIX_TIME

NOW = 1_800_000_000
ROTATION = Rotation(every_s=100, overlap_s=10)


def test_a_key_is_announced_before_it_is_active_and_stays_valid_beside_the_next() -> None:
    keys = {4: Validity(NOW, NOW + 110)}

    assert ROTATION.next_key(keys, NOW + 89) is None
    assert ROTATION.next_key(keys, NOW + 90) == NextKey(5, Validity(NOW + 100, NOW + 210))


def test_every_window_up_to_the_overlap_has_a_key_at_any_second_of_a_year_of_rotations() -> None:
    keys: dict[int, Validity] = {1: Validity(0, MAX_UNIX_TIME)}
    for now in range(NOW, NOW + 3000):
        keys = ROTATION.bounded(keys, now)
        following = ROTATION.next_key(keys, now)
        if following is not None:
            keys[following.key_id] = following.validity
        keys = {key_id: one for key_id, one in keys.items() if one.not_after > now}
        assert any(one.not_before <= now and now + 10 <= one.not_after for one in keys.values())
        assert len(keys) <= 2
    assert len(keys) >= 1
    assert 1 not in keys


def test_after_a_long_sleep_the_next_key_is_valid_at_once() -> None:
    keys = {255: Validity(NOW - 1000, NOW - 5)}

    assert ROTATION.next_key(keys, NOW) == NextKey(0, Validity(NOW, NOW + 110))
    assert ROTATION.next_key({}, NOW) == NextKey(0, Validity(NOW, NOW + 110))


def test_ids_that_are_there_are_passed_over_and_256_keys_are_all() -> None:
    over = Validity(0, NOW - 1)

    assert ROTATION.next_key({7: Validity(0, NOW), 8: over, 9: over}, NOW) == NextKey(10, Validity(NOW, NOW + 110))
    assert ROTATION.next_key(dict.fromkeys(range(256), over), NOW) is None


@pytest.mark.parametrize("post_quantum", [False, True])
def test_a_new_key_is_private_and_an_erased_one_is_overwritten(tmp_path: Path, *, post_quantum: bool) -> None:
    write_validities(tmp_path, {3: Validity(5, 9)})
    add_key(tmp_path, 3, post_quantum=post_quantum)
    path = tmp_path / "3.key"
    ring = KeyRing.load(tmp_path)
    [(key_id, public_key, validity)] = ring.listed()
    with path.open("rb") as held:
        erase_key(tmp_path, 3)
        assert set(held.read()) == {0}

    assert (key_id, validity, len(public_key)) == (3, Validity(5, 9), 1216 if post_quantum else 32)
    assert [one.name for one in tmp_path.iterdir()] == ["key-list.toml"]


def test_private_key_files_are_made_for_their_owner_alone(tmp_path: Path) -> None:
    add_key(tmp_path, 3, post_quantum=False)

    assert (tmp_path / "3.key").stat().st_mode & 0o777 == 0o600


def test_a_deleted_key_leaves_memory_also_beside_a_file_that_cannot_be_used(tmp_path: Path) -> None:
    for key_id in (1, 2):
        add_key(tmp_path, key_id, post_quantum=False)
    ring = KeyRing.load(tmp_path)
    ring.refresh()
    (tmp_path / "7.key").write_text("no key")

    erase_key(tmp_path, 1)
    ring.refresh()

    assert ring.key_ids == {2}
    assert ring.public_key(1) is None
    assert ring.is_unusable

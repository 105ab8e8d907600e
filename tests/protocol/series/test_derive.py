"""Every party derives the same task of a window, the one its fields say, and its own verify key."""

import hashlib
import hmac
from dataclasses import replace

import pytest
from fleetcount_protocol.errors import TaskError, UsageError
from fleetcount_protocol.ids import TaskId
from fleetcount_protocol.series.derive import check_verify_seed, window_task, window_verify_key
from fleetcount_protocol.series.series import decode_series
from fleetcount_protocol.series.windows import window_fields
from fleetcount_protocol.task.codec import encode_fields
from fleetcount_protocol.task.domain import Categories
from fleetcount_protocol.task.task import Task, decode_task

from tests.support.protocol_samples import seed_bytes
from tests.support.series_samples import SEED, every_series, sampling_series

ALL = every_series()


@pytest.mark.parametrize("name", sorted(ALL.keys() - {"drill_down"}))
def test_a_window_has_the_fields_and_bytes_that_its_series_says(name: str) -> None:
    series = ALL[name]
    last = series.schedule.windows - 1
    for index in {0, min(1, last), last // 2, last}:
        task = window_task(series, index)
        fields = window_fields(series, series.series_id, index)

        assert task == Task(**{one: getattr(fields, one) for one in task.__dataclass_fields__})
        assert task.canonical == encode_fields(fields)
        assert decode_task(task.canonical) == task
        assert task.task_id == TaskId(hashlib.sha256(task.canonical).digest())
        assert task.design == series.design


def test_times_of_a_window_follow_the_schedule() -> None:
    series = ALL["sampling_window"]
    task = window_task(series, 719)

    opens = series.schedule.first + 719 * 3_600
    assert (task.round_one_opens, task.round_one_closes) == (opens, opens + 600)
    assert (task.round_two_closes, task.expiry) == (opens + 1_200, opens + 1_200 + 86_400)
    assert task.verify_key_digest == series.verify_seed_digest


def test_every_party_derives_the_same_bytes_and_every_window_differs() -> None:
    series = ALL["sampling_day"]
    other = decode_series(series.canonical)

    tasks = [window_task(series, index) for index in range(720)]

    assert [task.canonical for task in tasks] == [window_task(other, index).canonical for index in range(720)]
    assert len({task.task_id for task in tasks}) == 720
    assert window_task(sampling_series(name="Another"), 3).task_id != window_task(sampling_series(), 3).task_id


@pytest.mark.parametrize("index", [-1, 720, 1.0, True, None])
def test_there_is_no_other_window(index: int) -> None:
    with pytest.raises(UsageError, match=r"window is .*, allowed: 0 to 719"):
        window_task(ALL["sampling_window"], index)


def test_windows_share_what_does_not_change() -> None:
    names = tuple(f"{number:04d}" + "x" * 196 for number in range(4095))
    series = replace(ALL["direct"], domain=Categories(names=names))
    first, second = window_task(series, 0), window_task(series, 1)

    assert first.domain is second.domain
    assert first.design is second.design
    assert len(first.canonical) == len(series.canonical) + 20


def test_a_verify_key_is_expanded_from_the_seed_for_one_task() -> None:
    task_id = window_task(ALL["direct"], 2).task_id
    expected = hmac.new(SEED, b"fleetcount v1 window key" + task_id + b"\1", hashlib.sha256).digest()

    assert window_verify_key(SEED, task_id) == expected
    assert window_verify_key(SEED, window_task(ALL["direct"], 3).task_id) != expected
    assert window_verify_key(seed_bytes("other"), task_id) != expected
    with pytest.raises(UsageError, match="31 bytes, allowed: 32"):
        window_verify_key(SEED[1:], task_id)


@pytest.mark.parametrize("seed", [SEED[:-1], SEED + b"\0", seed_bytes("other")])
def test_the_seed_is_the_one_that_was_signed(seed: bytes) -> None:
    check_verify_seed(ALL["direct"], SEED)
    with pytest.raises(TaskError, match="not the one the series commits to"):
        check_verify_seed(ALL["direct"], seed)

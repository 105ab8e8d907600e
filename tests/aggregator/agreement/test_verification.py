"""Which verifier a window gets: NumPy's until compiled code, which takes seconds to load, would have paid for that."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from fleetcount_aggregator.agreement.verification import Verification
from fleetcount_aggregator.verification.share_arithmetic import ProofSetting
from fleetcount_transport.failpoints import Failpoints

LENGTH = 1_000
WINDOW: Any = SimpleNamespace(
    leader_id="alpha",
    prio3=SimpleNamespace(circuit=SimpleNamespace(measurement_length=LENGTH)),
    setting=ProofSetting(window=b"", verify_key=b"", position=0),
)


class NotingWorkers:
    """Workers that verify nothing and note with which verifier they were asked to."""

    count = 1

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def run(self, _: object, setting: ProofSetting, __: object) -> Any:
        self.asked.append(setting.prefer)
        return SimpleNamespace(damaged=())


def reports_of(number: int) -> Any:
    """Return what looks like the complete reports of a window."""
    return SimpleNamespace(ids=range(number), source=lambda _: None)


async def verified_by(sizes: list[int], *, batch: int = 500) -> list[str]:
    """Verify windows of so many reports in batches; return the verifiers that were asked for, one a window."""
    workers = NotingWorkers()
    verification, found = Verification(workers, Failpoints()), list[str]()  # type: ignore[arg-type]
    for size in sizes:
        workers.asked.clear()
        for start in range(0, size, batch):
            await verification.verify(WINDOW, reports_of(size), np.arange(start, min(start + batch, size)))
        found.append(workers.asked[-1])
    return found


async def test_a_small_window_is_verified_by_numpy_and_a_large_one_by_compiled_code_from_its_first_report() -> None:
    assert await verified_by([5_999]) == ["arrays"]
    assert await verified_by([6_000], batch=6_000) == ["auto"]


async def test_compiled_code_is_loaded_once_small_windows_have_cost_as_much() -> None:
    assert await verified_by([2_000] * 5) == ["arrays", "arrays", "arrays", "auto", "auto"]

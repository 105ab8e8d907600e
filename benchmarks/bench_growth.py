"""How cost grows: with the number of values, of aggregators, of reports at once, of devices. Small series, one run.

Every row stands beside the first of its series; the ratio says how many times that it costs. CPU time of one core.
Decides nothing.
"""

import os
from collections.abc import Iterable
from fractions import Fraction

import numpy as np
from bench_kernel import CTX, batches, verify_s
from bench_simulator import Even, case, held, seed
from fleetcount_aggregator.agreement.report_set import BatchVerdicts, OwnSet
from fleetcount_aggregator.storage.report_ids import ReportIds
from fleetcount_analysis.intervals import sampling_intervals
from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.vdaf.prio3 import Prio3, first_instalments, prio3_two_round, second_instalments
from fleetcount_simulator.engines import engine
from fleetcount_simulator.model import Engine
from rows import NOT_QUICK, Row, Unit, best_cpu_s, quick, report, smoke

LENGTHS = (65, 257, 1025, 4096)
"""L, one more than the number of values; 4,096 is the most a window may have."""
AGGREGATORS = (2, 3, 5, 8)
REPORTS = 16 if smoke() else 64 if quick() else 256
MOST_IDS = 10**4 if smoke() else 10**6
MOST_DEVICES = 10**5 if smoke() else 10**6 if quick() else 10**7


def series(what: str, unit: Unit, points: Iterable[tuple[str, float]], note: str = "") -> None:
    """Report the points of one series, (its name, its cost), each beside the first."""
    first: tuple[str, float] | None = None
    for name, cost in points:
        first = first or (name, cost)
        report(
            Row(
                path=f"{what}, {name}",
                ours=cost,
                unit=unit,
                peer=first[0],
                peer_value=first[1],
                ratio=cost / first[1],
                larger_is_better=False,
                note=note,
            )
        )


def verifying_us(prio3: Prio3, aggregator: int, count: int) -> float:
    """Return the microseconds a report of verifying and adding up, `count` at once, on one core."""
    return 1e6 * verify_s(prio3, aggregator, batches(prio3, (0, 7), count)[aggregator], prefer="auto")


def answering_ms(prio3: Prio3) -> float:
    """Return the milliseconds of a device's shares and proofs of both rounds, in plain Python."""
    nonce, rand = os.urandom(16), os.urandom(prio3.rand_size)

    def answer() -> None:
        first_instalments(prio3, CTX, nonce, rand, 0)
        second_instalments(prio3, CTX, nonce, rand, 0, 7)

    return 1e3 * best_cpu_s(answer)


def part_bytes(prio3: Prio3) -> int:
    """Return the bytes of shares and proofs that a device sends to all aggregators in both rounds, before sealing."""
    parts = sum(prio3.input_share_size(position) for position in range(prio3.shares))
    return parts + prio3.public_share_size * prio3.shares


def with_values() -> None:
    """Report how cost grows with L = V + 1."""
    named = [(f"L = {length:,}, k = 2", prio3_two_round(length, 2)) for length in LENGTHS]
    note = f"{REPORTS} reports at once, two rounds, one core"
    series("verify, helper", "us", ((name, verifying_us(prio3, 1, REPORTS)) for name, prio3 in named), note)
    series("verify, leader", "us", ((name, verifying_us(prio3, 0, REPORTS)) for name, prio3 in named), note)
    series("device, both rounds", "ms", ((name, answering_ms(prio3)) for name, prio3 in named), "plain Python")
    series("bytes of a report", "B", ((name, part_bytes(prio3)) for name, prio3 in named), "to all, before sealing")
    outputs: list[int] = np.random.default_rng(1).integers(0, 100_000, max(LENGTHS)).tolist()
    widths = [length - 1 for length in LENGTHS]
    series("intervals of a release", "ms", ((f"V = {width:,}", intervals_ms(outputs[:width])) for width in widths))


def intervals_ms(outputs: list[int]) -> float:
    """Return the milliseconds of exact 95 % intervals for a release."""
    rate, noise, level = Fraction(1, 4), Fraction(1729, 1000), Fraction(19, 20)
    return 1e3 * best_cpu_s(lambda: sampling_intervals(outputs, rate, noise, 2, level))


def with_aggregators() -> None:
    """Report how cost grows with k."""
    named = [(f"L = 1,000, k = {shares}", prio3_two_round(1000, shares)) for shares in AGGREGATORS]
    note = f"{REPORTS} reports at once, two rounds, one core"
    series("verify, helper", "us", ((name, verifying_us(prio3, 1, REPORTS)) for name, prio3 in named), note)
    series("device, both rounds", "ms", ((name, answering_ms(prio3)) for name, prio3 in named), "plain Python")
    series("bytes of a report", "B", ((name, part_bytes(prio3)) for name, prio3 in named), "to all, before sealing")


def with_reports() -> None:
    """Report how the cost of a report falls when many are verified at once, and what agreeing on them costs."""
    prio3 = prio3_two_round(101, 2)
    counts = (8, 64, 512) if smoke() else (8, 64, 512, 4096)
    points = ((f"{count:,} at once", verifying_us(prio3, 1, count)) for count in counts)
    series("verify, helper, L = 101, a report", "us", points)
    sizes = [size for size in (10**4, 10**5, 10**6) if size <= MOST_IDS]
    series("agreeing on a set", "ms", ((f"{size:,} reports", agreeing_ms(size)) for size in sizes))


def agreeing_ms(size: int) -> float:
    """Return the milliseconds of making the leaves of a set of the reports held here."""
    digests = np.frombuffer(os.urandom(32 * size), dtype=np.uint8).reshape(-1, 32)
    joined, wanted = os.urandom(16 * size), np.ones(size, dtype=np.bool_)
    return 1e3 * best_cpu_s(
        lambda: OwnSet.of(WindowId(bytes(32)), BatchVerdicts(ReportIds(joined), wanted, digests), wanted)
    )


def with_devices() -> None:
    """Report how simulating grows with the number of devices and of values."""
    law, devices = engine("exact-law"), engine("per-device")
    sizes = [10**power for power in (5, 6, 7) if 10**power <= MOST_DEVICES]
    devices.run(case(held(1_000, 1_000)), 0, [0], seed())  # Loads the compiled loops.
    followed = ((f"{size:,} devices", followed_ms(devices, size)) for size in sizes)
    series("per device, one core, V = 1,000", "ms", followed)
    if quick():
        why = f"{NOT_QUICK}the most devices take longest"
        report(Row(path="per device, one core, V = 1,000, 10,000,000 devices", ours=None, unit="ms", note=why))
    fleets = [(f"{size:,} devices", Even(size, 1_000)) for size in (10**5, 10**7, 10**9)]
    series("exact law, V = 1,000", "ms", ((name, drawn_ms(law, fleet)) for name, fleet in fleets))
    fleets = [(f"V = {values:,}", Even(10**9, values)) for values in (100, 1_000, 10_000)]
    series("exact law, 10^9 devices", "ms", ((name, drawn_ms(law, fleet)) for name, fleet in fleets))


def followed_ms(devices: Engine, size: int) -> float:
    """Return the milliseconds of a release in which every device is followed."""
    fleet = case(held(size, 1_000))
    return 1e3 * best_cpu_s(lambda: devices.run(fleet, 0, [0], seed()))


def drawn_ms(law: Engine, fleet: Even) -> float:
    """Return the milliseconds of a release drawn from its law."""
    one = case(fleet)
    return 1e3 * best_cpu_s(lambda: law.run(one, 0, [0], seed()))


def main() -> None:
    """Report every series."""
    with_values()
    with_aggregators()
    with_reports()
    with_devices()


if __name__ == "__main__":
    main()

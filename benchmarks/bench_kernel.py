"""Verification of many reports on one core: compiled code beside its scalar twin and the hashing it cannot avoid.

The limit of a report is the time of the Keccak-p[1600,12] permutations that the draft prescribes for it at this
aggregator, at the speed measured here for the permutation alone, eight at a time. All times but those of starts are
CPU time of one core. Decides nothing.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from batch_sharding import BatchSharder
from fleetcount_aggregator.verification.choice import combine, new_batch_verifier
from fleetcount_kernel.compiling import compiled
from fleetcount_kernel.proofs import ProofBatch, VerifierSetting
from fleetcount_kernel.simd import WIDTH, Words
from fleetcount_kernel.sponge import RATE, STATE_ROWS, permute
from fleetcount_protocol.vdaf.circuits import Multihot
from fleetcount_protocol.vdaf.field import SEED_SIZE
from fleetcount_protocol.vdaf.prio3 import Prio3, prio3_bits, prio3_multihot, prio3_one_hot, prio3_two_round
from rows import NOT_QUICK, Row, Unit, best_cpu_s, quick, report, smoke

CTX = b"FCT1" + bytes(32)
KEY = bytes(range(32))
COUNT = 16 if smoke() else 256
ROUNDS = 200 if smoke() else 2_000


@compiled
def permutations(state: Words, count: int) -> None:
    """Apply the permutation `count` times to eight states."""
    for _ in range(count):
        permute(state)


def permutation_s() -> float:
    """Return the seconds of one permutation of one state, eight being done at a time."""
    state = np.zeros((STATE_ROWS, WIDTH), dtype=np.uint64)
    permutations(state, 1)
    return best_cpu_s(lambda: permutations(state, ROUNDS)) / ROUNDS / WIDTH


def hashed(message: int, squeezed: int = SEED_SIZE) -> int:
    """Return the permutations of one TurboSHAKE128 call: message bytes in, squeezed bytes out."""
    return message // RATE + 1 + max(0, -(-squeezed // RATE) - 1)


def permutations_of(prio3: Prio3, aggregator: int) -> int:
    """Return the permutations the draft prescribes for verifying one report (sections 7.2.2 and 7.2.6)."""
    head = 2 + 8 + len(CTX) + 1 + SEED_SIZE
    words, proofs, flp = prio3.circuit.measurement_length, prio3.proofs, prio3.flp
    total = hashed(head + 1 + 16 + 8 * words) + hashed(head + SEED_SIZE * prio3.shares)
    total += hashed(head + 1, 8 * prio3.circuit.joint_rand_length * proofs)
    total += hashed(head + 1 + 16, 8 * flp.query_rand_length * proofs)
    if aggregator > 0:
        total += hashed(head + 1, 8 * words) + hashed(head + 2, 8 * flp.proof_length * proofs)
    return total


def batches(prio3: Prio3, measurement: Sequence[int] | int, count: int) -> list[ProofBatch]:
    """Return that many honest reports, one batch an aggregator; of sets eight, again and again."""
    if isinstance(prio3.circuit, Multihot):
        return sets(prio3, measurement, count)
    nonces, rands = os.urandom(16 * count), os.urandom(prio3.rand_size * count)
    made = BatchSharder(prio3, CTX).shard(nonces, rands, np.array([measurement] * count))
    return [ProofBatch(nonces=nonces, public_shares=made.public_shares, input_shares=share) for share in made.shares]


def sets(prio3: Prio3, measurement: Sequence[int] | int, count: int) -> list[ProofBatch]:
    """Return that many reports of a set, made by the scalar code."""
    nonces, publics, inputs = b"", b"", [b""] * prio3.shares
    for _ in range(WIDTH):
        nonce = os.urandom(16)
        public, shares = prio3.shard(CTX, measurement, nonce, os.urandom(prio3.rand_size))
        nonces, publics = nonces + nonce, publics + public
        inputs = [before + share for before, share in zip(inputs, shares, strict=True)]
    often = count // WIDTH
    return [
        ProofBatch(nonces=nonces * often, public_shares=publics * often, input_shares=share * often) for share in inputs
    ]


def verify_s(prio3: Prio3, aggregator: int, batch: ProofBatch, *, prefer: Any = "kernel") -> float:
    """Return the seconds a report of verifying and adding up."""
    setting = VerifierSetting(prio3=prio3, verify_key=KEY, ctx=CTX, aggregator=aggregator)
    verifier = new_batch_verifier(setting, prefer=prefer)
    assert verifier.verify(batch).reasons == bytes(batch.count)
    return best_cpu_s(lambda: verifier.verify(batch)) / batch.count


STARTS = "a process's first verifier: later starts on a machine"
COMPILES = f"{NOT_QUICK}it compiles anew"
CASES = (
    ("two rounds, L = 1,000, k = 2", prio3_two_round(1000, 2), (0, 7), True),
    ("two rounds, L = 1,000, k = 3", prio3_two_round(1000, 3), (0, 7), False),
    ("two rounds, L = 101, k = 2", prio3_two_round(101, 2), (0, 7), False),
    ("two rounds, L = 65, k = 2", prio3_two_round(65, 2), (0, 7), False),
    ("one round, L = 1,000, k = 2", prio3_one_hot(1000, 2), 7, False),
    ("bits, L = 100, k = 2", prio3_bits(100, 2), [1] * 100, False),
    ("a set of at most 8 of 1,000, k = 2", prio3_multihot(1000, 8, 2), [1] * 8 + [0] * 992, False),
    ("a set of at most 3 of 72, k = 2", prio3_multihot(72, 3, 2), [1] * 3 + [0] * 69, False),
    ("one round, L = 73, k = 2", prio3_one_hot(73, 2), 7, False),
)


def verification(where: str = "") -> None:
    """Report verification beside its limit, for helper and leader."""
    one = permutation_s()
    note = f"{COUNT:,} reports, one core, permutation {1e9 * one:.3g} ns a state ({RATE / one / 1e9:.3g} GB/s){where}"
    for name, prio3, measurement, demanded in CASES:
        made = batches(prio3, measurement, COUNT)
        for aggregator, role in ((1, "helper"), (0, "leader")):
            seconds = verify_s(prio3, aggregator, made[aggregator])
            limit = permutations_of(prio3, aggregator) * one
            report(
                Row(
                    path=f"verify and add up, {name}, {role}{where}",
                    ours=1e6 * seconds,
                    unit="us",
                    peer="Keccak of the same report",
                    peer_value=1e6 * limit,
                    ratio=limit / seconds,
                    must=0.35 if demanded and not where else None,
                    aim=0.5 if demanded and not where else None,
                    note=note,
                )
            )


def beside_the_twin() -> None:
    """Report verification, combining and sharding beside the scalar code."""
    prio3 = prio3_two_round(1000, 2)
    made, few = batches(prio3, (0, 7), COUNT), batches(prio3, (0, 7), 4)
    for aggregator, role in ((1, "helper"), (0, "leader")):
        ours = verify_s(prio3, aggregator, made[aggregator])
        twin = verify_s(prio3, aggregator, few[aggregator], prefer="scalar")
        limit = permutations_of(prio3, aggregator) * permutation_s()
        note = f"hashing alone allows {twin / limit:,.0f} times"
        row(f"verify and add up, two rounds, L = 1,000, k = 2, {role}", ours, twin, (1000, 3000), note)
    columns = [
        new_batch_verifier(VerifierSetting(prio3=prio3, verify_key=KEY, ctx=CTX, aggregator=j)).verify(batch)
        for j, batch in enumerate(made)
    ]
    shares = [column.verifier_shares for column in columns]
    ours = best_cpu_s(lambda: combine(prio3, CTX, shares, prefer="kernel")) / COUNT
    twin = best_cpu_s(lambda: combine(prio3, CTX, shares, prefer="scalar")) / COUNT
    row("combine verifier shares, k = 2", ours, twin, (None, None), f"{COUNT:,} reports")
    for length in (101, 1000):
        shard(length)


def shard(length: int) -> None:
    """Report both rounds' shares of simulated devices beside the scalar device."""
    prio3 = prio3_two_round(length, 2)
    sharder = BatchSharder(prio3, CTX)
    count = min(COUNT, sharder.block)
    nonces, rands = os.urandom(16 * count), os.urandom(prio3.rand_size * count)
    answers = np.array([(0, 7)] * count)
    ours = best_cpu_s(lambda: sharder.shard(nonces, rands, answers)) / count
    twin = best_cpu_s(lambda: prio3.shard(CTX, (0, 7), nonces[:16], rands[: prio3.rand_size]))
    bounds = (200, None) if length == 101 else (None, None)
    row(f"shares of a simulated device, L = {length:,}, k = 2", ours, twin, bounds, f"{count} devices a call")


def row(path: str, ours: float, twin: float, bounds: tuple[float | None, float | None], note: str) -> None:
    """Report microseconds beside the scalar twin's."""
    report(
        Row(
            path=path,
            ours=1e6 * ours,
            unit="us",
            peer="scalar twin",
            peer_value=1e6 * twin,
            ratio=twin / ours,
            must=bounds[0],
            aim=bounds[1],
            note=note,
        )
    )


def starts() -> None:
    """Report a first start on a machine, which compiles, and a later one, which loads."""
    with tempfile.TemporaryDirectory() as directory:
        times = [start_s(directory) for _ in range(3)]
    report(
        Row(
            path=STARTS,
            ours=times[-1],
            unit="s",
            peer="the first start, which compiles",
            peer_value=times[0],
            note="imports of Numba, NumPy and fleetcount included",
        )
    )


def start_s(cache: str) -> float:
    """Return the seconds a fresh process takes until its first verifier is ready."""
    program = "import bench_kernel; bench_kernel.first_verifier()"
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache, "PYTHONPATH": str(Path(__file__).parent)}
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begin


def first_verifier() -> None:
    """Make a verifier, as a worker process does when it starts."""
    setting = VerifierSetting(prio3=prio3_two_round(65, 2), verify_key=KEY, ctx=CTX, aggregator=1)
    assert new_batch_verifier(setting, prefer="kernel").name == "kernel"


def without_avx512() -> None:
    """Run the verification rows again in a process whose code uses no AVX-512."""
    features = import_module("llvmlite.binding").get_host_cpu_features()
    if not any(name.startswith("avx512") and present for name, present in features.items()):
        left_out("verify and add up, AVX2", "us", "this processor has no AVX-512: the other rows are what it has")
        return
    kept = {name: present and not name.startswith("avx512") for name, present in features.items()}
    listed = ",".join(f"{'+' if present else '-'}{name}" for name, present in sorted(kept.items()))
    environment = {**os.environ, "NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": listed}
    subprocess.run([sys.executable, __file__, "--only", "AVX2"], env=environment, check=True)


def main() -> None:
    """Print every figure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="verification rows alone, marked with this word")
    only = parser.parse_args().only
    if only:
        verification(f", {only}")
        return
    verification()
    beside_the_twin()
    if quick():
        left_out("verify and add up, AVX2", "us", COMPILES)
        left_out(STARTS, "s", COMPILES)
        return
    without_avx512()
    starts()


def left_out(path: str, unit: Unit, why: str) -> None:
    """Report what is not measured here."""
    report(Row(path=path, ours=None, unit=unit, note=why))


if __name__ == "__main__":
    main()

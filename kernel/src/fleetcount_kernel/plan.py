"""The parameters of a window for the compiled code, and the memory of that code.

The memory is one array of rows, a vector of eight words each: first the sponge, then constants of the window (the same
word in every lane), then the working rows of one group of eight reports, then the sums. A `Plan` has lengths and, in
fields that end in `_at`, the first row of each region. Lengths count words of 64 bits unless a name says bytes. Plain
Python and NumPy, without reports.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import numpy as np
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.vdaf.circuits import BitVector, Multihot, OneHot, SumVec, TwoRoundOneHot
from fleetcount_protocol.vdaf.field import FIELD64, SEED_SIZE, domain_separation_tag, evaluation_domain
from fleetcount_protocol.vdaf.prio3 import Prio3

from fleetcount_kernel.block_sums import LARGEST_SUM, POWER_ROWS, power_rows
from fleetcount_kernel.power_sums import TABLE_ROWS, block_length
from fleetcount_kernel.proofs import USAGES
from fleetcount_kernel.simd import WIDTH, Words
from fleetcount_kernel.sponge import STATE_ROWS

_WORD_BYTES: Final = 8


class Plan(NamedTuple):
    """One algorithm at one aggregator; the names of lengths are those of `Prio3`, `Flp` and the circuit.

    A measurement is `vectors` vectors of `length` entries; `chunk_length` is 0 except for the bit check. In a set
    `holder` is the index of the entry "it has any", elsewhere 0, and `rest` how many bits stand behind it, with weights
    at `rest_weights_at`; their sum is kept in the row behind the measurement, and zeros fill the calls. `measurement`
    and `outputs` are lengths of a report, `proof`, `joint`, `query` and `verifier` of one proof. `block` is the
    number of small steps (`power_sums`). A head is the constant beginning of a hashed message. Rows at `last_value_at`
    are the weights of the gadget polynomial's last value in terms of the others, as `write_power` has them; `turn` is
    1/w, w the root of unity of its nodes. The row at `rejected_from_at` is p: a
    report with a stream word of at least that is left to the scalar verifier. The rows at `twists_at` and those from
    `stream_at` to `powers_at` are for sharding only, which a benchmark does (benchmarks/batch_sharding.py).
    """

    aggregator: int
    shares: int
    proofs: int
    vectors: int
    length: int
    chunk_length: int
    holder: int
    rest: int
    calls: int
    measurement: int
    proof: int
    joint: int
    query: int
    verifier: int
    outputs: int
    wires: int
    block: int
    wire_nodes: int
    measurement_head_at: int
    measurement_head_bytes: int
    proof_head_at: int
    proof_head_bytes: int
    joint_randomness_head_at: int
    joint_randomness_head_bytes: int
    prove_head_at: int
    prove_head_bytes: int
    query_head_at: int
    query_head_bytes: int
    joint_seed_head_at: int
    joint_seed_head_bytes: int
    joint_part_head_at: int
    joint_part_head_bytes: int
    lane_numbers_at: int
    rejected_from_at: int
    shares_inverse_at: int
    wire_nodes_at: int
    wire_inverse_at: int
    half_at: int
    turn_at: int
    last_value_at: int
    rest_weights_at: int
    twists_at: int
    measurement_at: int
    proofs_at: int
    joint_at: int
    query_at: int
    seeds_at: int
    verifiers_at: int
    table_at: int
    wire_weights_at: int
    gadget_weights_at: int
    gadget_table_at: int
    stream_at: int
    parts_at: int
    prove_at: int
    wires_at: int
    powers_at: int
    sums_at: int


def covers(prio3: Prio3) -> bool:
    """Return whether compiled code exists for the algorithm: circuits of windows over Field64, of 63 calls at most."""
    circuit = prio3.circuit
    if prio3.field != FIELD64 or prio3.flp.gadget_length > LARGEST_SUM:
        return False
    if isinstance(circuit, SumVec):
        return circuit.bits == 1
    return isinstance(circuit, TwoRoundOneHot | OneHot | Multihot)


class Layout:
    """The regions of the memory, in the order in which they are added; constants must be added first."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}
        self._constants: list[int] = []
        self._end = STATE_ROWS
        self._spare: list[Words] = []

    def constant(self, name: str, words: Sequence[int]) -> None:
        """Add a region with these words, each in all lanes of a row; its plan field is `name`_at."""
        self._constants += words
        self.working(name, len(words))

    def working(self, name: str, count: int) -> None:
        """Add a region of `count` rows; its plan field is `name`_at."""
        self.places[f"{name}_at"] = self._end
        self._end += count

    @contextmanager
    def memory(self) -> Generator[Words]:
        """Yield memory for one call: uint64, rows x 8, with the constants and zero sums; other rows are not cleared.

        Threads may call it at the same time: each gets memory of its own, which is reused afterwards.
        """
        try:
            rows = self._spare.pop()
        except IndexError:
            rows = self._new_memory()
        rows[self.places["sums_at"] :] = 0
        yield rows
        self._spare.append(rows)

    def _new_memory(self) -> Words:
        """Return memory with its constants; the first row begins at a cache line of 64 bytes."""
        memory = np.zeros((self._end + 1) * WIDTH, dtype=np.uint64)
        offset = (-memory.ctypes.data // memory.itemsize) % WIDTH
        rows = memory[offset : offset + self._end * WIDTH].reshape(self._end, WIDTH)
        constants = np.array(self._constants, dtype=np.uint64)
        rows[STATE_ROWS : STATE_ROWS + constants.size] = constants[:, np.newaxis]
        rows[self.places["lane_numbers_at"]] = np.arange(WIDTH)
        return rows


def new_plan(
    prio3: Prio3,
    aggregator: int,
    ctx: bytes,
    verify_key: bytes,
    *,
    rejected_from: int = FIELD64.modulus,
    sharding: bool = False,
) -> tuple[Plan, Layout]:
    """Return the plan of an algorithm, and the layout of its memory, which contains the verify key.

    A plan for `sharding` is a device's: aggregator and verify key are not used.

    Raises:
        UsageError: `covers` is false for the algorithm.
    """
    circuit, flp = prio3.circuit, prio3.flp
    if not covers(prio3):
        raise UsageError(f"circuit {circuit.name} over {prio3.field.name} has no compiled verification")
    vectors = 2 if isinstance(circuit, TwoRoundOneHot) else 1
    length = circuit.measurement_length // vectors
    layout = Layout()
    # The seeds that are the same for all reports; the other hashes absorb a seed of each report after the head.
    seeds = {"query": verify_key, "joint_seed": bytes(SEED_SIZE)}
    heads = {name: _head(prio3, ctx, usage, seeds.get(name, b"")) for name, usage in USAGES.items()}
    for name, message in heads.items():
        padded = message + bytes(-len(message) % _WORD_BYTES)
        layout.constant(f"{name}_head", FIELD64.unpack_words(padded))
    _place_constants(layout, prio3, rejected_from)
    _place_working_rows(layout, prio3, sharding=sharding)
    plan = Plan(
        aggregator=aggregator,
        shares=prio3.shares,
        proofs=prio3.proofs,
        vectors=vectors,
        length=length,
        chunk_length=circuit.chunk_length if isinstance(circuit, BitVector) else 0,
        holder=circuit.length if isinstance(circuit, Multihot) else 0,
        rest=len(_rest_weights(prio3)),
        calls=circuit.gadget_calls,
        measurement=circuit.measurement_length,
        proof=flp.proof_length,
        joint=circuit.joint_rand_length,
        query=flp.query_rand_length,
        verifier=flp.verifier_length,
        outputs=circuit.output_length,
        wires=circuit.gadget.arity,
        block=block_length(length, vectors),
        wire_nodes=flp.wire_length,
        **{f"{name}_head_bytes": len(message) for name, message in heads.items()},
        **layout.places,
    )
    return plan, layout


def _head(prio3: Prio3, ctx: bytes, usage: int, seed: bytes) -> bytes:
    """Return the beginning of a message (`XofTurboShake128`): the tag and its length, the seed's length, the seed."""
    tag = domain_separation_tag(prio3.algorithm_id, usage, ctx)
    return b"".join((len(tag).to_bytes(2, "little"), tag, bytes((SEED_SIZE,)), seed))


def _place_constants(layout: Layout, prio3: Prio3, rejected_from: int) -> None:
    wires = evaluation_domain(FIELD64, prio3.flp.wire_length)
    gadget = evaluation_domain(FIELD64, 2 * prio3.flp.wire_length)
    layout.constant("lane_numbers", [0])
    layout.constant("rejected_from", [rejected_from])
    layout.constant("shares_inverse", [FIELD64.inverse(prio3.shares)])
    layout.constant("wire_nodes", wires.nodes)
    layout.constant("wire_inverse", [wires.size_inverse])
    layout.constant("half", [FIELD64.inverse(2)])
    layout.constant("turn", [gadget.nodes[-1]])
    # The gadget polynomial has degree below size - 1: its top coefficient, (1/size) sum of value times node, is zero.
    last_inverse = FIELD64.inverse(gadget.nodes[-1])
    last_value = [-node * last_inverse % FIELD64.modulus for node in gadget.nodes[:-1]]
    layout.constant("last_value", power_rows(last_value))
    layout.constant("rest_weights", _rest_weights(prio3))
    layout.constant("twists", _twists(gadget.nodes[: wires.size], wires.size_inverse))


def _rest_weights(prio3: Prio3) -> list[int]:
    return prio3.circuit.rest_weights if isinstance(prio3.circuit, Multihot) else []


def _twists(powers: Sequence[int], size_inverse: int) -> list[int]:
    """Return s**i / size, s the root of twice the order, at the index i with its bits reversed; for sharding."""
    bits = (len(powers) - 1).bit_length()
    reversed_bits = [int(f"{index:0{bits}b}"[::-1], 2) if bits else 0 for index in range(len(powers))]
    return [powers[index] * size_inverse % FIELD64.modulus for index in reversed_bits]


def _place_working_rows(layout: Layout, prio3: Prio3, *, sharding: bool) -> None:
    circuit, flp, proofs = prio3.circuit, prio3.flp, prio3.proofs
    filled = circuit.chunk_length * circuit.gadget_calls if isinstance(circuit, Multihot) else 0
    layout.working("measurement", max(circuit.measurement_length, filled))
    layout.working("proofs", flp.proof_length * proofs)
    layout.working("joint", circuit.joint_rand_length * proofs)
    layout.working("query", flp.query_rand_length * proofs)
    layout.working("seeds", 2 * SEED_SIZE // _WORD_BYTES)
    layout.working("verifiers", flp.verifier_length)
    layout.working("table", max(TABLE_ROWS, 2 * POWER_ROWS * circuit.gadget_calls if filled else 0))
    layout.working("wire_weights", flp.wire_length)
    layout.working("gadget_weights", flp.wire_length)
    layout.working("gadget_table", POWER_ROWS * 2 * flp.wire_length)
    for name, count in (
        ("stream", max(circuit.measurement_length, flp.proof_length * proofs)),
        ("parts", SEED_SIZE // _WORD_BYTES * prio3.shares),
        ("prove", flp.prove_rand_length * proofs),
        ("wires", 2 * flp.wire_length),
        ("powers", circuit.gadget_calls),
    ):
        layout.working(name, count if sharding else 0)
    layout.working("sums", circuit.output_length)

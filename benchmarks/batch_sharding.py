"""The shares of many simulated devices at once, byte for byte those of `Prio3.shard` and its two instalments.

For simulations, which know every device's answer and randomness: a real device makes its own report with the scalar
code. Nothing here draws, seals or sends.
"""

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from compiled_sharding import shard_first_groups, shard_groups
from fleetcount_kernel.compiling import make_ready
from fleetcount_kernel.plan import new_plan
from fleetcount_kernel.simd import WIDTH, Words
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.vdaf.circuits import SumVec, TwoRoundOneHot
from fleetcount_protocol.vdaf.field import FIELD64, SEED_SIZE
from fleetcount_protocol.vdaf.prio3 import Prio3, first_instalment_size, first_instalments
from numpy.typing import ArrayLike, NDArray

_WORD_BYTES: Final = 8
_BLOCK_BYTES: Final = 1 << 19
"""What is written between two copies: less than a core's second-level cache."""

_SEED_WORDS: Final = SEED_SIZE // _WORD_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedBatch:
    """The reports of n devices as columns, one record a device in each.

    `public_shares` n x `Prio3.public_share_size`; `shares` one column an aggregator: input shares, or the part of one
    round.
    """

    public_shares: bytes
    shares: tuple[bytes, ...] = field(repr=False)


class BatchSharder:
    """Shards for one algorithm and context, eight devices at a time in compiled code; for one thread.

    Nonces are n x 16 and randomness n x `Prio3.rand_size` bytes, one record a device, drawn by the caller (a seeded
    generator in a simulation). The first one on a machine compiles (`fleetcount_kernel.compiling`). `rejected_from`
    means the same as for the compiled verifier: a smaller number sends more reports to the scalar code and changes no
    byte. `block` is the number of devices that is fastest at a time. Raises UsageError for an algorithm without
    compiled code.
    """

    def __init__(self, prio3: Prio3, ctx: bytes, *, rejected_from: int = FIELD64.modulus) -> None:
        self._prio3, self._ctx = prio3, ctx
        self._plan, self._layout = new_plan(prio3, 0, ctx, b"", rejected_from=rejected_from, sharding=True)
        devices = _BLOCK_BYTES // prio3.input_share_size(0)
        self.block = max(WIDTH, devices - devices % WIDTH)
        # Written again for every block: fresh pages would cost more than the hashing.
        leader_words = prio3.input_share_size(0) // _WORD_BYTES
        self._leaders = np.zeros((self.block, leader_words), dtype=np.uint64)
        self._publics = np.zeros((self.block, _SEED_WORDS * prio3.shares), dtype=np.uint64)
        self._again = np.zeros((self.block, 1), dtype=np.uint64)
        nothing = _filled(np.zeros((0, self._entries)))
        make_ready(shard_groups, lambda: self._shard(b"", b"", nothing))
        if self._two_rounds:
            make_ready(shard_first_groups, lambda: self._first(b"", _filled(nothing[:, :1])))

    def shard(self, nonces: bytes, rands: bytes, measurements: ArrayLike) -> ShardedBatch:
        """Return what `Prio3.shard` gives for every device.

        `measurements` is a whole-number array: positions (n) for OneHot, positions of both rounds (n, 2) for
        TwoRoundOneHot, bits (n, length) for bits. Raises UsageError for a column of the wrong size or a measurement
        that the circuit does not admit, without naming it.
        """
        return self._shard(nonces, rands, self._checked(nonces, rands, measurements))

    def first_instalments(self, nonces: bytes, rands: bytes, round_one: ArrayLike) -> tuple[bytes, ...]:
        """Return every aggregator's column of round one, as `prio3.first_instalments`; positions are (n).

        Raises UsageError as `shard` does, and for a circuit that has one round.
        """
        if not self._two_rounds:
            raise UsageError(f"circuit {self._prio3.circuit.name} has one round, not two")
        positions = np.asarray(round_one).reshape(-1, 1)
        self._checked(nonces, rands, np.repeat(positions, 2, axis=1))
        return self._first(rands, _filled(positions))

    def second_instalments(
        self, nonces: bytes, rands: bytes, round_one: ArrayLike, round_two: ArrayLike
    ) -> ShardedBatch:
        """Return the public shares and every aggregator's column of round two, as `prio3.second_instalments`."""
        whole = self.shard(nonces, rands, np.stack([np.asarray(round_one), np.asarray(round_two)], axis=-1))
        count = len(nonces) // self._prio3.nonce_size
        parts: list[bytes] = []
        for j, share in enumerate(whole.shares):
            skipped = first_instalment_size(self._prio3, j) // _WORD_BYTES
            parts.append(_read_only(share, self._prio3.input_share_size(j), count)[:, skipped:].tobytes())
        return ShardedBatch(public_shares=whole.public_shares, shares=tuple(parts))

    @property
    def _two_rounds(self) -> bool:
        return isinstance(self._prio3.circuit, TwoRoundOneHot)

    @property
    def _entries(self) -> int:
        """Numbers in a measurement."""
        circuit = self._prio3.circuit
        return circuit.measurement_length if isinstance(circuit, SumVec) else self._plan.vectors

    def _checked(self, nonces: bytes, rands: bytes, measurements: ArrayLike) -> Words:
        """Return the measurements as rows of whole groups."""
        prio3, plan = self._prio3, self._plan
        table: NDArray[Any] = np.asarray(measurements)
        count = len(nonces) // prio3.nonce_size
        for name, column, size in (("nonces", nonces, prio3.nonce_size), ("randomness", rands, prio3.rand_size)):
            if len(column) != count * size:
                raise UsageError(f"the {name} of {count} devices have {len(column)} bytes, not {count * size}")
        if table.size != count * self._entries:
            raise UsageError(f"the measurements of {count} devices have {table.size} numbers, not {self._entries} each")
        table = table.reshape(count, self._entries)
        end = 2 if plan.chunk_length else plan.length
        if table.size and (table.dtype.kind not in "iub" or table.min() < 0 or table.max() >= end):
            raise UsageError(f"a measurement is not made of whole numbers 0..{end - 1}")
        if self._two_rounds and ((table[:, 0] != 0) & (table[:, 0] != table[:, 1])).any():
            raise UsageError("round one is neither 0 nor equal to round two")
        return _filled(table)

    def _shard(self, nonces: bytes, rands: bytes, measurements: Words) -> ShardedBatch:
        """Shard in blocks: what the compiled code writes then stays in the processor's caches until it is copied."""
        prio3 = self._prio3
        random = _read_only(rands, prio3.rand_size, len(measurements))
        own = _read_only(nonces, prio3.nonce_size, len(measurements))
        count = len(nonces) // prio3.nonce_size
        leaders: list[bytes] = []
        publics: list[bytes] = []
        for first in range(0, max(1, count), self.block):
            part = slice(first, first + self.block)
            leader, public = self._shard_block(own[part], random[part], measurements[part])
            leaders.append(leader[: count - first].tobytes())
            publics.append(public[: count - first].tobytes())
        size = 2 * _SEED_WORDS
        helpers = [random[:count, size * j : size * (j + 1)].tobytes() for j in range(prio3.shares - 1)]
        return ShardedBatch(public_shares=b"".join(publics), shares=(b"".join(leaders), *helpers))

    def _shard_block(self, nonces: Words, rands: Words, measurements: Words) -> tuple[Words, Words]:
        """Return the leader's input shares and the public shares of whole groups."""
        prio3, plan, groups = self._prio3, self._plan, len(measurements)
        explicit = plan.measurement + plan.proof * plan.proofs
        leaders, publics, again = self._leaders[:groups], self._publics[:groups], self._again[:groups]
        with self._layout.memory() as memory:
            shard_groups(plan, memory, nonces, rands, measurements, leaders, publics, again)
        blind = 2 * _SEED_WORDS * (prio3.shares - 1)
        leaders[:, explicit:] = rands[:, blind : blind + _SEED_WORDS]
        for row in np.flatnonzero(again).tolist():
            measurement = self._measurement(measurements[row])
            public, shares = prio3.shard(self._ctx, measurement, nonces[row].tobytes(), rands[row].tobytes())
            leaders[row], publics[row] = _words(shares[0]), _words(public)
        return leaders, publics

    def _first(self, rands: bytes, positions: Words) -> tuple[bytes, ...]:
        prio3 = self._prio3
        random = _read_only(rands, prio3.rand_size, len(positions))
        count = len(rands) // prio3.rand_size
        leaders: list[bytes] = []
        for first in range(0, max(1, count), self.block):
            part = slice(first, first + self.block)
            leaders.append(self._first_block(random[part], positions[part])[: count - first].tobytes())
        starts = [2 * _SEED_WORDS * j for j in range(prio3.shares - 1)]
        helpers = [random[:count, start : start + _SEED_WORDS].tobytes() for start in starts]
        return (b"".join(leaders), *helpers)

    def _first_block(self, rands: Words, positions: Words) -> Words:
        """Return the leader's words of round one for whole groups."""
        prio3, plan = self._prio3, self._plan
        leaders = self._leaders.reshape(-1)[: len(positions) * plan.length].reshape(-1, plan.length)
        again = self._again[: len(positions)]
        with self._layout.memory() as memory:
            shard_first_groups(plan, memory, rands, positions, leaders, again)
        for row in np.flatnonzero(again).tolist():
            # The nonce has no part in round one but its size.
            nonce, rand = bytes(prio3.nonce_size), rands[row].tobytes()
            leaders[row] = _words(first_instalments(prio3, self._ctx, nonce, rand, int(positions[row, 0]))[0])
        return leaders

    def _measurement(self, row: NDArray[np.uint64]) -> object:
        """Return a measurement of the type the circuit's `encode` takes."""
        numbers = [int(number) for number in row]
        if self._two_rounds:
            return (numbers[0], numbers[1])
        return numbers if isinstance(self._prio3.circuit, SumVec) else numbers[0]


def _filled(table: NDArray[Any]) -> Words:
    """Return the table with rows of zeros up to whole groups, read-only as compiled code expects it."""
    filled = np.zeros((len(table) + -len(table) % WIDTH, table.shape[1]), dtype=np.uint64)
    filled[: len(table)] = table
    filled.flags.writeable = False
    return filled


def _read_only(column: bytes, size: int, groups: int) -> Words:
    """Return the records as rows of words, filled up with records of zeros to `groups` of them."""
    filled = column + bytes(groups * size - len(column))
    return np.frombuffer(filled, dtype=np.uint64).reshape(groups, size // _WORD_BYTES)


def _words(record: bytes) -> NDArray[np.uint64]:
    return np.frombuffer(record, dtype=np.uint64)

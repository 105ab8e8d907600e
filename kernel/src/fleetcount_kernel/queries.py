"""The query of a proof for eight reports: this aggregator's share of the verifier (draft-irtf-cfrg-vdaf, 7.3.4).

`fleetcount_protocol.vdaf.flp` defines the query, `fleetcount_protocol.vdaf.circuits` the circuits; names and order are
the same. The functions read the rows that `shares.prepare` filled and write the verifier rows. Compiled code only.
"""

from typing import Final

import numpy as np

from fleetcount_kernel.block_sums import POWER_ROWS, block_sums, write_power
from fleetcount_kernel.compiling import compiled
from fleetcount_kernel.field64 import add, lagrange_coefficients, multiply, power_of_two_power, subtract
from fleetcount_kernel.plan import Plan
from fleetcount_kernel.power_sums import power_sums, write_powers
from fleetcount_kernel.simd import Lanes, Words, load, splat, store

_ZERO: Final = np.uint64(0)
_ONE: Final = np.uint64(1)


@compiled
def query_two_round(plan: Plan, proof: int, excess: tuple[Lanes, Lanes], rows: Words) -> None:
    """Write the verifier of TwoRoundOneHot; `excess` are both vectors' sums less 1/k."""
    values = plan.proofs_at + plan.proof * proof + 2
    first_query = plan.query * proof
    x1, y1, x2, y2 = _forms(plan, proof, rows)
    square_one, square_two = load(rows, values + 2), load(rows, values + 4)
    product = load(rows, values + 6)
    reduced = multiply(load(rows, plan.query_at + first_query), subtract(square_one, y1))
    reduced = add(reduced, multiply(load(rows, plan.query_at + first_query + 1), subtract(square_two, y2)))
    reduced = add(reduced, multiply(load(rows, plan.query_at + first_query + 2), subtract(square_one, product)))
    reduced = add(reduced, multiply(load(rows, plan.query_at + first_query + 3), excess[0]))
    reduced = add(reduced, multiply(load(rows, plan.query_at + first_query + 4), excess[1]))
    store(rows, plan.verifiers_at + 0, reduced)
    _weigh_point(plan, proof, rows)
    # The gadget's calls in their order: (x1, x1), (x2, x2), (x1, x2).
    weights = plan.wire_weights_at
    one, two, three = load(rows, weights + 1), load(rows, weights + 2), load(rows, weights + 3)
    left = add(multiply(add(one, three), x1), multiply(two, x2))
    right = add(multiply(one, x1), multiply(add(two, three), x2))
    store(rows, plan.verifiers_at + 1, add(_seed_at_point(plan, proof, 0, rows), left))
    store(rows, plan.verifiers_at + 2, add(_seed_at_point(plan, proof, 1, rows), right))
    store(rows, plan.verifiers_at + 3, _gadget_at_point(plan, values, rows))


@compiled
def query_one_hot(plan: Plan, proof: int, excess: Lanes, rows: Words) -> None:
    """Write the verifier of OneHot; `excess` is the vector's sum less 1/k."""
    values = plan.proofs_at + plan.proof * proof + 2
    first_query = plan.query * proof
    x, y, _, _ = _forms(plan, proof, rows)
    reduced = multiply(load(rows, plan.query_at + first_query), subtract(load(rows, values + 2), y))
    store(rows, plan.verifiers_at + 0, add(reduced, multiply(load(rows, plan.query_at + first_query + 1), excess)))
    _weigh_point(plan, proof, rows)
    wire = multiply(load(rows, plan.wire_weights_at + 1), x)
    store(rows, plan.verifiers_at + 1, add(_seed_at_point(plan, proof, 0, rows), wire))
    store(rows, plan.verifiers_at + 2, add(_seed_at_point(plan, proof, 1, rows), wire))
    store(rows, plan.verifiers_at + 3, _gadget_at_point(plan, values, rows))


@compiled
def query_bits(plan: Plan, proof: int, rows: Words) -> None:
    """Write the verifier of SumVec with one bit an entry: the bit check of `chunk_length` entries a gadget call."""
    chunk, values = plan.chunk_length, plan.proofs_at + plan.proof * proof + 2 * plan.chunk_length
    reduced = splat(_ZERO)
    for call in range(1, plan.calls + 1):
        reduced = add(reduced, load(rows, values + 2 * call))
    store(rows, plan.verifiers_at + 0, reduced)
    _weigh_point(plan, proof, rows)
    for wire in range(2 * chunk):
        store(rows, plan.verifiers_at + 1 + wire, _seed_at_point(plan, proof, wire, rows))
    for call in range(plan.calls):
        _add_chunk(plan, proof, call, rows)
    store(rows, plan.verifiers_at + 2 * chunk + 1, _gadget_at_point(plan, values, rows))


@compiled
def query_set(plan: Plan, proof: int, ones: Lanes, rows: Words) -> None:
    """Write the verifier of Multihot; `ones` is what `set_excess` returned.

    Call i has the weight w_i of the point, and product t of call t mod calls the power t + 1 of rho. So in place j the
    left wire is rho**(calls j) times the sum of w_i rho**(i + 1) m_t, the right one the sum of w_i (m_t - 1/k).
    """
    chunk, calls, values = plan.chunk_length, plan.calls, plan.proofs_at + plan.proof * proof + 2 * plan.chunk_length
    first_query = plan.query_at + plan.query * proof
    reduced = splat(_ZERO)
    for call in range(1, calls + 1):
        reduced = add(reduced, load(rows, values + 2 * call))
    reduced = multiply(load(rows, first_query), reduced)
    store(rows, plan.verifiers_at + 0, add(reduced, multiply(load(rows, first_query + 1), ones)))
    _weigh_point(plan, proof, rows)
    lefts, rights = plan.table_at, plan.table_at + POWER_ROWS * calls
    rho, power, total = load(rows, plan.joint_at + proof), splat(_ONE), splat(_ZERO)
    for call in range(calls):
        weight = load(rows, plan.wire_weights_at + call + 1)
        power, total = multiply(power, rho), add(total, weight)
        write_power(rows, lefts + POWER_ROWS * call, multiply(weight, power))
        write_power(rows, rights + POWER_ROWS * call, weight)
    constant, step, power = multiply(total, load(rows, plan.shares_inverse_at)), power, splat(_ONE)
    for place in range(chunk):
        left, right = block_sums(rows, plan.measurement_at + calls * place, calls, lefts, rights, 1)
        left = add(multiply(power, left), _seed_at_point(plan, proof, 2 * place, rows))
        right = add(subtract(right, constant), _seed_at_point(plan, proof, 2 * place + 1, rows))
        store(rows, plan.verifiers_at + 1 + 2 * place, left)
        store(rows, plan.verifiers_at + 2 + 2 * place, right)
        power = multiply(power, step)
    if plan.rest > 0:
        # The last product is that of the rest with "it has any", which stands in the place of its right factor.
        row = plan.verifiers_at + 2 + 2 * (plan.measurement // calls)
        behind = subtract(
            load(rows, plan.measurement_at + plan.holder), load(rows, plan.measurement_at + plan.measurement)
        )
        weight = load(rows, plan.wire_weights_at + 1 + plan.measurement % calls)
        store(rows, row, add(load(rows, row), multiply(weight, behind)))
    store(rows, plan.verifiers_at + 2 * chunk + 1, _gadget_at_point(plan, values, rows))


@compiled
def set_excess(plan: Plan, excess: Lanes, rows: Words) -> Lanes:
    """Return the number of a set's values less the reported one, from the sum of the outputs less 1/k.

    The outputs end with the entry "it has any". Writes the reported rest to the row behind the measurement.
    """
    holds = load(rows, plan.measurement_at + plan.holder)
    rest = splat(_ZERO)
    for index in range(plan.rest):
        bit = load(rows, plan.measurement_at + plan.holder + 1 + index)
        rest = add(rest, multiply(load(rows, plan.rest_weights_at + index), bit))
    if plan.rest > 0:
        store(rows, plan.measurement_at + plan.measurement, rest)
    ones = subtract(add(excess, load(rows, plan.shares_inverse_at)), holds)
    return subtract(subtract(ones, holds), rest)


@compiled
def _add_chunk(plan: Plan, proof: int, call: int, rows: Words) -> None:
    """Add one call's inputs, weighted for the point, to the wires: rho**(j + 1) m_j and m_j - 1/k for its entries m_j.

    Entries after the last one are zero.
    """
    rho, weight = load(rows, plan.joint_at + plan.calls * proof + call), load(rows, plan.wire_weights_at + call + 1)
    constant, power, first = load(rows, plan.shares_inverse_at), weight, plan.chunk_length * call
    for place in range(plan.chunk_length):
        power = multiply(power, rho)
        entry = load(rows, plan.measurement_at + first + place) if first + place < plan.measurement else splat(_ZERO)
        row = 1 + 2 * place
        store(rows, plan.verifiers_at + row, add(load(rows, plan.verifiers_at + row), multiply(power, entry)))
        shifted = multiply(weight, subtract(entry, constant))
        store(rows, plan.verifiers_at + row + 1, add(load(rows, plan.verifiers_at + row + 1), shifted))


@compiled
def _forms(plan: Plan, proof: int, rows: Words) -> tuple[Lanes, Lanes, Lanes, Lanes]:
    """Return x and y of the first vector and of the second, zeros when there is none."""
    block, table, count = plan.block, plan.table_at, plan.length - 1
    giant, giant_of_square = write_powers(rows, load(rows, plan.joint_at + proof), block, table)
    first = plan.measurement_at + 1
    x1, y1 = power_sums(rows, first, count, block, table, giant, giant_of_square)
    if plan.vectors == 1:
        return x1, y1, splat(_ZERO), splat(_ZERO)
    x2, y2 = power_sums(rows, first + plan.length, count, block, table, giant, giant_of_square)
    return x1, y1, x2, y2


@compiled
def _weigh_point(plan: Plan, proof: int, rows: Words) -> None:
    """Write the weights that give the wire and gadget polynomials at the query point t from their values.

    With P nodes of the wires and w the root of order 2P, every second node of the gadget is one of theirs and has their
    weight times (1 + t**P)/2; the others have the wires' weights at t/w times (1 - t**P)/2.
    """
    point, nodes = load(rows, plan.query_at + plan.query * (proof + 1) - 1), plan.wire_nodes
    inverse, one = load(rows, plan.wire_inverse_at), splat(_ONE)
    lagrange_coefficients(rows, point, plan.wire_nodes_at, nodes, inverse, plan.wire_weights_at)
    top = power_of_two_power(point, nodes)
    half = load(rows, plan.half_at)
    even, odd = multiply(add(one, top), half), multiply(subtract(one, top), half)
    turned, scale = multiply(point, load(rows, plan.turn_at)), multiply(odd, inverse)
    lagrange_coefficients(rows, turned, plan.wire_nodes_at, nodes, scale, plan.gadget_weights_at)
    for index in range(nodes):
        row = plan.gadget_table_at + POWER_ROWS * 2 * index
        write_power(rows, row, multiply(even, load(rows, plan.wire_weights_at + index)))
        write_power(rows, row + POWER_ROWS, load(rows, plan.gadget_weights_at + index))


@compiled
def _seed_at_point(plan: Plan, proof: int, wire: int, rows: Words) -> Lanes:
    """Return the term of a wire polynomial's value at the point that belongs to its first value, the seed."""
    return multiply(load(rows, plan.wire_weights_at), load(rows, plan.proofs_at + plan.proof * proof + wire))


@compiled
def _gadget_at_point(plan: Plan, values: int, rows: Words) -> Lanes:
    """Return the gadget polynomial at the point, from its values in rows `values` and on.

    The proof omits the last value, which follows from the others because the degree is too small by one.
    """
    count = 2 * plan.wire_nodes - 1
    known, last = block_sums(rows, values, count, plan.gadget_table_at, plan.last_value_at, 1)
    return add(known, multiply(load(rows, plan.gadget_weights_at + plan.wire_nodes - 1), last))

"""What aggregators see of a proof's verification, enumerated: of a valid report nothing (docs/spec.md, claim 4)."""

from collections import Counter
from itertools import product

import pytest
from fleetcount_protocol.vdaf.circuits import OneHot, TwoRoundOneHot
from fleetcount_protocol.vdaf.field import PrimeField, evaluation_domain
from fleetcount_protocol.vdaf.flp import Circuit, Flp

F17 = PrimeField(name="F17", modulus=17, encoded_size=1, generator=3, two_adicity=4)
CIRCUITS = [
    pytest.param(TwoRoundOneHot(field=F17, length=3), [(0, 0), (0, 2), (1, 1), (2, 2)], id="two rounds"),
    pytest.param(OneHot(field=F17, length=3), [0, 1, 2], id="one"),
]
MASKS = list(product(range(17), repeat=2))


def verifiers(
    circuit: Circuit, measurement: object, rho: int, point: int, masks: list[tuple[int, ...]]
) -> Counter[tuple[int, ...]]:
    """Return how often each sum of all verifier shares is seen, over the wire seeds of the prover."""
    flp, encoded = Flp(circuit), circuit.encode(measurement)
    weights = [3, 5, 11, 2, 7][: flp.query_rand_length - 1]
    return Counter(
        tuple(flp.query(encoded, flp.prove(encoded, mask, [rho]), [*weights, point], [rho], 1)) for mask in masks
    )


@pytest.mark.parametrize("rho", [0, 6])
@pytest.mark.parametrize(("circuit", "measurements"), CIRCUITS)
def test_the_verifier_of_a_valid_report_tells_nothing_of_it(
    circuit: Circuit, measurements: list[object], rho: int
) -> None:
    domain = evaluation_domain(F17, Flp(circuit).wire_length)
    points = [point for point in range(17) if not domain.contains(point)][:2]
    uniform = Counter((0, one, two, one * two % 17) for one, two in MASKS)

    for point, measurement in product(points, measurements):
        assert verifiers(circuit, measurement, rho, point, MASKS) == uniform


@pytest.mark.parametrize(("circuit", "measurements"), CIRCUITS)
def test_without_wire_seeds_it_would_tell(circuit: Circuit, measurements: list[object]) -> None:
    seen = [verifiers(circuit, measurement, 6, 0, [(0, 0)]) for measurement in measurements]

    assert any(one != seen[0] for one in seen)

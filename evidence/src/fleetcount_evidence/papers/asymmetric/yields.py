"""The exact number of right answers that a sparse vector gives over locations in a random order.

It must not draw an order: the outcomes of a random order are exchangeable, so means over subsets are enough.
"""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def all_found(found: Floats, depth: int) -> Floats:
    """Return a_m, m = 0 .. depth: the probability that m locations drawn without replacement are all found safe.

    `found` is (d,), each location's probability beta; the result is (depth + 1,) float64. a_m = e_m(beta)/C(d, m), by
    the recursion a_m <- ((k - m) a_m + m beta_k a_(m-1))/k over the locations k; its weights are positive, so no
    digits cancel.
    """
    orders = np.arange(depth + 1, dtype=np.float64)
    law = np.zeros(depth + 1)
    law[0] = 1.0
    for number, beta in enumerate(found.tolist(), 1):
        shifted = np.concatenate([[0.0], law[:-1]])
        law = np.where(orders <= number, (number - orders) * law + orders * beta * shifted, 0.0) / number
    return law


def at_least(law: Floats, aborts: int) -> Floats:
    """Return P[at least m right answers before the c-th abort] for m = 0 .. depth - c, float64.

    This is the probability that at most c - 1 of the first n = m + c - 1 queries abort. Exactly j of them abort with
    probability C(n, j) times the sum over i of (-1)^i C(j, i) a_(n-j+i); `law` is the result of `all_found`.
    """
    reach = law.size - aborts
    answers = np.zeros(reach)
    for m in range(reach):
        queries = m + aborts - 1
        answers[m] = math.fsum(
            math.comb(queries, j) * (-1) ** i * math.comb(j, i) * law[queries - j + i]
            for j in range(aborts)
            for i in range(j + 1)
        )
    return answers

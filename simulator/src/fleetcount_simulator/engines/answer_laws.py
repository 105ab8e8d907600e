"""How one device answers, as the two numbers an engine draws with; and which numbers a release opens.

Rounds the exact law of a design to floats for drawing; it draws nothing itself.
"""

from dataclasses import dataclass
from typing import Final, Literal, cast

import numpy as np
from fleetcount_mechanisms.answers import AnswerForm
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.sampling import SamplingDie
from numpy.typing import NDArray

from fleetcount_simulator.errors import ScenarioError

Shape = Literal["sampling", "binary", "k-ary", "bits", "truth"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLaw:
    """The law of a device's answer to a question of V values.

    `hit` and `miss` are, by shape: "sampling": p and (1-p)/(V+1), the chance of being sampled and of each other face.
    "binary": P[Yes | Yes], P[Yes | No]. "k-ary": P[v | v], P[v | another]. "bits": P[a bit is 1 | it is 1], P[.. | it
    is 0], of the cells that tell least where `cells` has those of each. "truth": 1 and 0. `with_holders` is for sets:
    how many devices tell any value is a sum of its own.
    """

    shape: Shape
    values: int
    hit: float
    miss: float
    with_holders: bool = False
    cells: tuple[tuple[float, float], ...] = ()

    @property
    def chances(self) -> NDArray[np.float64]:
        """(2, V): for every cell the chance that its bit is 1 if it is false, and if it is true."""
        cells = self.cells or ((self.hit, self.miss),) * self.values
        return np.array(cells, dtype=np.float64).T[::-1].copy()

    def channel(self, value: int) -> tuple[float, float]:
        """Return P and Q of the cell of a value 1..V."""
        return self.cells[value - 1] if self.cells else (self.hit, self.miss)

    @property
    def rounds(self) -> int:
        """How many messages a device sends: 2 for sampling, otherwise 1."""
        return 2 if self.shape == "sampling" else 1

    @property
    def with_zero(self) -> bool:
        """Whether the release opens output 0 as well."""
        return self.shape in {"binary", "k-ary"}

    @property
    def outputs(self) -> int:
        """How many sums there are: V, or V+1 with output 0 first, or last with how many tell any value of a set."""
        return self.values + 1 if self.with_zero or self.with_holders else self.values


def answer_law(design: Design) -> AnswerLaw:
    """Return the law of a device's answer to a question of this design.

    Raises:
        ScenarioError: a response that does not treat all other values alike, so that two numbers do not describe it.
    """
    hit, miss = design.channel
    if design.form is AnswerForm.TWO_ROUNDS:
        miss = cast("SamplingDie", design.answer).face_probability(0)
    shape = _SHAPES.get(design.form) or ("binary" if design.values == 1 else "k-ary")
    if shape == "k-ary" and hit + design.values * miss != 1:
        raise ScenarioError(f"{design.name} tells values apart; engines draw responses that treat all others alike")
    holders = design.levels.most > 1 and design.levels.total
    cells = () if len(set(design.told_as)) == 1 else tuple((float(p), float(q)) for p, q in design.channels)
    return AnswerLaw(
        shape=shape, values=design.values, hit=float(hit), miss=float(miss), with_holders=holders, cells=cells
    )


_SHAPES: Final[dict[AnswerForm, Shape]] = {
    AnswerForm.TWO_ROUNDS: "sampling",
    AnswerForm.TRUTH: "truth",
    AnswerForm.BITS: "bits",
}

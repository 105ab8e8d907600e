"""An analyst's estimates and intervals of every cell, from simulated releases of many runs in one call.

It must not see the truth: it reads the opened numbers by the public design, with `fleetcount_analysis.reading`.
"""

from typing import Final

import numpy as np
from fleetcount_analysis.answers import one_level
from fleetcount_analysis.reading import Reading, read
from fleetcount_mechanisms.design import Outputs

from fleetcount_simulator.model import Case, CaseOutcome

PARTICIPATION: Final = "participation"
"""The tally of bit vectors: the noised number of devices, which such a release opens beside the bits."""


def read_releases(case: Case, outcome: CaseOutcome) -> Reading:
    """Return estimates and intervals of every run of an outcome; rows of runs without a release have no meaning.

    Of several levels it reads the cells, for which the devices were asked.

    Raises:
        AnalysisError: an output beyond 10^12 in size.
    """
    design, outputs = case.design, outcome.outputs
    if design.outputs is Outputs.PARTICIPATION and outputs.shape[1] == design.values:
        devices = outcome.tallies.get(PARTICIPATION, outcome.participants)
        outputs = np.column_stack((devices, outputs))
    return read(one_level(design, 0), outputs[:, : design.values + design.baseline_opened], case.level)

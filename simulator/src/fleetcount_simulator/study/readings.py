"""What an analyst reads out of simulated releases: estimates and intervals of every cell, many runs in one call.

It must not see the truth: it reads what a release shows, by the public design, with `fleetcount_analysis.reading`.
"""

from typing import Final

import numpy as np
from fleetcount_analysis.answers import one_zoom
from fleetcount_analysis.reading import Reading, read
from fleetcount_mechanisms.design import Outputs

from fleetcount_simulator.model import Case, CaseOutcome

PARTICIPATION: Final = "participation"
"""The tally that holds the noised number of devices a release of bit vectors opens beside the bits."""


def read_releases(case: Case, outcome: CaseOutcome) -> Reading:
    """Return what is read out of every run of an outcome; rows of runs without a release mean nothing.

    Of a release of several zooms the finest is read, whose squares the devices were asked for.

    Raises:
        AnalysisError: an output beyond 10^12 in size.
    """
    design, outputs = case.design, outcome.outputs
    if design.outputs is Outputs.PARTICIPATION and outputs.shape[1] == design.values:
        devices = outcome.tallies.get(PARTICIPATION, outcome.participants)
        outputs = np.column_stack((devices, outputs))
    return read(one_zoom(design, 0), outputs[:, : design.summed_count], case.level)

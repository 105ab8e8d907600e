"""The experiments of the four papers by name, run one after the other into one set of results.

It must not print: progress goes to the step function of the results.
"""

from collections.abc import Callable, Sequence
from typing import Final

from fleetcount_analysis.errors import RangeError

from fleetcount_evidence.papers.asymmetric import experiment as asymmetric
from fleetcount_evidence.papers.extracts import Extracts
from fleetcount_evidence.papers.geometric import experiment as geometric
from fleetcount_evidence.papers.inferential import experiment as inferential
from fleetcount_evidence.papers.results import Results, Settings
from fleetcount_evidence.papers.sampling import experiment as sampling

EXPERIMENTS: Final[dict[str, Callable[[Extracts, Settings, Results], None]]] = {
    "sampling": sampling.run,
    "asymmetric": asymmetric.run,
    "geometric": geometric.run,
    "inferential": inferential.run,
}


def run_experiments(names: Sequence[str], extracts: Extracts, settings: Settings, results: Results) -> None:
    """Run the named experiments and write claims.json last.

    Raises:
        RangeError: an unknown name.
        ExtractError: a data file is missing or malformed.
    """
    for name in names:
        if name not in EXPERIMENTS:
            raise RangeError("experiment", name, f"one of {', '.join(EXPERIMENTS)}")
    for name in names:
        EXPERIMENTS[name](extracts, settings, results)
    results.write_claims(experiments=list(names), quick=settings.quick, seed=settings.seed)

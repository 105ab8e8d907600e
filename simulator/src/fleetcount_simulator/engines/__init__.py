"""Three ways to carry out a study's runs: the law of the sums, every device's coins, or the real programs.

Chooses an engine and imports its module only then: the law needs neither a compiler nor network libraries.
"""

from importlib import import_module
from typing import Final, cast, get_args

from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Engine, EngineName

__all__ = ["engine"]

_MODULES: Final[dict[EngineName, str]] = {
    "exact-law": "fleetcount_simulator.engines.exact_law",
    "per-device": "fleetcount_simulator.engines.per_device",
    "network": "fleetcount_simulator.network.engine",
}


def engine(name: EngineName) -> Engine:
    """Return the engine of that name.

    Raises:
        ScenarioError: no engine has that name.
    """
    if name not in _MODULES:
        raise ScenarioError(f"engine is {name!r}; allowed are: {', '.join(get_args(EngineName))}")
    return cast("Engine", import_module(_MODULES[name]).engine())

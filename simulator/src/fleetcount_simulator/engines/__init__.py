"""Three ways to carry out a study's runs: the law of the sums, every device's coins, or the real programs.

Chooses an engine and imports its module only then: the law needs neither a compiler nor network libraries.
"""

from importlib import import_module
from typing import Final, cast, get_args

from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Engine, EngineName

__all__ = ["engine"]

_CLASSES: Final[dict[EngineName, tuple[str, str]]] = {
    "exact-law": ("fleetcount_simulator.engines.exact_law", "ExactLaw"),
    "per-device": ("fleetcount_simulator.engines.per_device", "PerDevice"),
    "network": ("fleetcount_simulator.network.engine", "NetworkEngine"),
}


def engine(name: EngineName) -> Engine:
    """Return the engine of that name.

    Raises:
        ScenarioError: no engine has that name.
    """
    if name not in _CLASSES:
        raise ScenarioError(f"engine is {name!r}; allowed are: {', '.join(get_args(EngineName))}")
    module, made = _CLASSES[name]
    return cast("Engine", getattr(import_module(module), made)())

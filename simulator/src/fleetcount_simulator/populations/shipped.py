"""The data sets that come with the package. It opens nothing."""

from pathlib import Path

import fleetcount_data

from fleetcount_simulator.errors import ScenarioError


def shipped(kind: str, name: str) -> Path:
    """Return the path of a file of a data set, such as "bologna/positions.csv.gz".

    Raises:
        ScenarioError: this installation has no such file; the message names the population's kind.
    """
    try:
        return fleetcount_data.path(name)
    except FileNotFoundError as error:
        raise ScenarioError(f"population.kind is {kind!r}: {error}; name population.file") from None

"""The data sets that come with the repository. It opens nothing."""

from pathlib import Path

from fleetcount_simulator.errors import ScenarioError

__all__ = ["shipped"]


def shipped(kind: str, name: str) -> Path:
    """Return the path of a file of the repository's data folder, such as "bologna/positions.csv.gz".

    Raises:
        ScenarioError: this installation has no data folder; names the population's kind.
    """
    path = Path(__file__).resolve().parents[4] / "data" / name
    if not path.is_file():
        raise ScenarioError(
            f"population.kind is {kind!r}: data/{name} is not part of this installation; run in the repository, "
            "or name population.file"
        )
    return path

"""Small extracts of real data, each with its source and its licence (SOURCE.md); no row describes a person.

Each data set has a folder: adult, bologna, breast_cancer, city, gowalla_nyc. The package computes nothing and needs no
other package.
"""

from importlib import resources
from pathlib import Path

__all__ = ["folder", "path"]


def folder() -> Path:
    """Return the directory with the folders of all data sets."""
    return Path(str(resources.files(__name__)))


def path(name: str) -> Path:
    """Return the path of a file of a data set, such as "bologna/positions.csv.gz".

    Raises:
        FileNotFoundError: this installation has no such file; the message is one line to show to a user.
    """
    found = folder() / name
    if not found.is_file():
        raise FileNotFoundError(f"{name} is not part of this installation: its data package is incomplete")
    return found

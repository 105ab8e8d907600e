"""Small extracts of real data, each folder with its source and its licence (SOURCE.md); no row of a person.

A folder a data set: adult, bologna, breast_cancer, city, gowalla_nyc. It computes nothing and needs no other package.
"""

from importlib import resources
from pathlib import Path

__all__ = ["folder", "path"]


def folder() -> Path:
    """Return the directory that holds the folders of all data sets."""
    return Path(str(resources.files(__name__)))


def path(name: str) -> Path:
    """Return the path of a file of a data set, such as "bologna/positions.csv.gz".

    Raises:
        FileNotFoundError: this installation has no such file; the message is one line for people.
    """
    found = folder() / name
    if not found.is_file():
        raise FileNotFoundError(f"{name} is not part of this installation: its data package is not whole")
    return found

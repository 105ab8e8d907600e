"""Ready scenarios: text to print, change and run. Their first comment line says what each is about."""

from importlib import resources
from typing import Final

from fleetcount_transport.toml_values import nearest, shown

from fleetcount_simulator.errors import ScenarioError

__all__ = ["EXAMPLES", "example_about", "example_names", "example_text"]

EXAMPLES: Final = (
    "bologna-morning",
    "mean-speed",
    "billion",
    "coverage",
    "sweep-epsilon",
    "mechanisms-compared",
    "drop-out-bias",
    "liars",
    "commuters-day",
    "commuters-month",
    "gowalla",
    "network-small",
    "network-windows",
)
"""The names, the first to try first."""


def example_names() -> tuple[str, ...]:
    """Return the names of all examples."""
    return EXAMPLES


def example_text(name: str) -> str:
    """Return the scenario file of an example.

    Raises:
        ScenarioError: no example has that name.
    """
    if name not in EXAMPLES:
        raise ScenarioError(f"there is no example {shown(name)}; {nearest(name, EXAMPLES)}")
    return resources.files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8")


def example_about(name: str) -> str:
    """Return one line about an example: its first comment.

    Raises:
        ScenarioError: no example has that name.
    """
    return example_text(name).partition("\n")[0].removeprefix("#").strip()

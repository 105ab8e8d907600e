"""An attacker's own parameters: the `Keys` of its kind, read from texts; a refusal names the parameter.

It must not depend on a single attacker.
"""

from typing import TYPE_CHECKING, Final, TypeVar

from fleetcount_mechanisms.errors import did_you_mean
from fleetcount_transport.settings import names_of, read_table
from fleetcount_transport.toml_table import Source, Table, Variable

from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Attacker

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MOST_DEVICES: Final = 10**12
KeysT = TypeVar("KeysT", bound="DataclassInstance")


def read_keys(attacker: Attacker, cls: type[KeysT]) -> KeysT:
    """Return the parameters of an attacker, whose kind has the keys of `cls`.

    Raises:
        ScenarioError: an unknown key, one given twice, or one outside its range.
    """
    name = f"attacker {attacker.name!r}:"
    values = {key: Variable(f"{name} {key}", text) for key, text in attacker.parameters}
    if len(values) != len(attacker.parameters):
        raise ScenarioError(f"{name} a parameter is given twice")
    known = names_of(cls)
    for key in values:
        if key not in known:
            raise ScenarioError(
                f"{name} {key!r} is not a key of kind {attacker.kind!r}; "
                f"allowed are: {', '.join(known)}{did_you_mean(key, known)}"
            )
    return read_table(Table(Source(name, error=ScenarioError), "", values, None), cls)

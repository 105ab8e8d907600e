"""Public names of a package that are imported on first use, so that a device loads only the mechanism that it uses.

Every package root but `fleetcount` gets its `__getattr__` from here. This module imports nothing of the project.
"""

from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_exports(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package whose public names are imported on first use.

    `homes` maps a module, named from the package on, to its public names in one text; a module that is public as a
    whole stands under its own name. Type checkers do not see this: the package shows them the same imports under
    `TYPE_CHECKING` and lists the names in `__all__`. Source: PEP 562.
    """
    home_of = {name: module for module, names in homes.items() for name in names.split()}

    def load(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f"{package}.{home_of[name]}")
        return module if name == home_of[name] else getattr(module, name)

    def names() -> list[str]:
        return sorted(home_of)

    return load, names

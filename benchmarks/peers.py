"""Libraries that are measured beside ours and that only `make nightly` installs; without them ours runs alone."""

import importlib
from typing import Any, Final

NOT_INSTALLED: Final = "it is not installed (`make nightly` installs it)"
"""How the note of a row ends the sentence that says which library it stands without."""


def opendp() -> tuple[Any, str]:
    """Return OpenDP and nothing, or None and what the note of a row adds where it is not installed."""
    try:
        found = importlib.import_module("opendp.prelude")
    except ModuleNotFoundError:
        return None, f"OpenDP was not run: {NOT_INSTALLED}"
    found.enable_features("contrib")
    return found, ""

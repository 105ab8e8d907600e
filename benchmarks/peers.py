"""Libraries that are measured beside ours and that only `make nightly` installs; without them ours runs alone."""

import importlib
from typing import Any

__all__ = ["opendp"]


def opendp() -> tuple[Any, str]:
    """Return OpenDP and nothing, or None and what the note of a row adds where it is not installed."""
    try:
        found = importlib.import_module("opendp.prelude")
    except ModuleNotFoundError:
        return None, "OpenDP was not run: it is not installed (`make nightly` installs it)"
    found.enable_features("contrib")
    return found, ""

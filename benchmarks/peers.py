"""What is measured beside ours: libraries that `make nightly` installs, and programs in environments of their own.

Without them ours runs alone.
"""

import importlib
import sys
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
bootstrap: Final[Any] = importlib.import_module("bootstrap")
LOCK: Final = bootstrap.LOCKS / "flower.txt"
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


def flower() -> tuple[Path | None, str]:
    """Return the interpreter of Flower's own environment, installed now unless it is there, and the version of Flower.

    None and what the note of a row says where it cannot be installed.
    """
    try:
        python: Path = bootstrap.install_beside("flower")
    except (bootstrap.SetupError, OSError) as error:
        return None, f"Flower was not run: it cannot be installed ({str(error).splitlines()[0]})"
    [version] = [one.pin.partition("==")[2] for one in bootstrap.locked(LOCK) if one.pin.startswith("flwr==")]
    return python, version

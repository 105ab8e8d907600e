"""Of which day and which state of the source a result is, which results carry and pages name."""

import subprocess
from datetime import UTC, datetime
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def build() -> str:
    """Return the commit of this tree, with a plus if it was changed since; "" without git."""
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def today() -> str:
    """Return the day, UTC, as in 2026-11-28."""
    return datetime.now(UTC).date().isoformat()

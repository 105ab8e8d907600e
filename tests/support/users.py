"""Parties of a test as users of their own: none of them reads what another has, but by what it is handed.

Only root begins a program as somebody else. Where others may not reach this Python or the test's files (a root's own
installation, pytest's private folders), they lie open in the program's own mount namespace, and nowhere else.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_FIRST = 58_001
"""Of users that no machine has by name."""


def user_of(place: int) -> int:
    """Return the number of the user, and of its group, of a party by its place."""
    return _FIRST + place


@lru_cache
def under(user: int, folder: Path, place: str = "") -> tuple[str, ...]:
    """Return what a command begins with that runs as a user, in a folder of the test's or in a place of it."""
    # Where it was begun is of the mounts before: between those and these no file is renamed.
    script = [
        *_opening(folder),
        f"cd '{folder / place}'",
        f'exec setpriv --reuid {user} --regid {user} --clear-groups --no-new-privs "$@"',
    ]
    return "unshare", "--mount", "sh", "-ec", "\n".join(script), "sh"


def _opening(folder: Path) -> list[str]:
    """Return the lines that put what is needed into its place below an empty folder that is open to all."""
    needed = dict.fromkeys(Path(one).resolve() for one in (sys.base_prefix, sys.prefix, _ROOT, folder))
    closed: dict[Path, list[Path]] = {}
    for path in needed:
        shut = [one for one in reversed(path.parents) if not one.stat().st_mode & 0o001]
        if shut:
            closed.setdefault(shut[0], []).append(path)
    numbers = {path: number for number, path in enumerate((one for row in closed.values() for one in row), start=3)}
    lines = [f"exec {number}<'{path}'" for path, number in numbers.items()]
    for parent, paths in closed.items():
        lines.append(f"mount -t tmpfs -o mode=755 closed '{parent}'")
        lines += [
            line
            for path in paths
            for line in (f"mkdir -p '{path}'", f"mount -c --bind /proc/self/fd/{numbers[path]} '{path}'")
        ]
    return [*lines, *(f"exec {number}<&-" for number in numbers.values())]


def why_one_user(folder: Path, environment: dict[str, str]) -> str:
    """Return why parties cannot be users of their own here, or ""."""
    if os.geteuid() != 0:
        return "only root begins programs as other users"
    if lacking := [one for one in ("unshare", "setpriv") if shutil.which(one) is None]:
        return f"{' and '.join(lacking)} is not on this machine (Debian: util-linux)"
    tried = ran_as(user_of(0), folder, [sys.executable, "-c", "import fleetcount"], environment)
    return "" if tried.returncode == 0 else f"another user cannot run this Python: {tried.stderr.strip()[-200:]}"


def ran_as(
    user: int, folder: Path, command: Sequence[str], environment: dict[str, str]
) -> "subprocess.CompletedProcess[str]":
    """Return a command that has run to its end as a user."""
    return subprocess.run(
        [*under(user, folder), *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

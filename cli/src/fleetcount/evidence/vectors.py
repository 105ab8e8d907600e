"""`fleetcount vectors`: replay test vectors of the sharing and proof layer, one line a file.

Reads files and prints verdicts; `fleetcount_evidence.replay` decides them.
"""

from pathlib import Path

import click
from fleetcount_protocol.errors import FleetcountError, UsageError

from fleetcount.command.base import JSON, CheckFailedError, StrictCommand, one_line, show
from fleetcount.command.options import PATH


@click.command(cls=StrictCommand, short_help="Replay VDAF test vectors.")
@click.argument("files", nargs=-1, required=True, type=PATH, metavar="FILE.json...")
@JSON
def vectors(files: tuple[Path, ...], as_json: bool) -> None:
    """Replay test vectors byte for byte: ours, those of draft-irtf-cfrg-vdaf, and what every decoder must refuse.

    One line a file: ok or MISS, with what was compared or what differed. A file named `..._bad_...` must fail exactly
    at the operation it says. The algorithm is known from the file's name (Prio3Count_0.json) or from its cases.

    Exit code 0 when every file is reproduced, 1 on any miss, 2 when a file cannot be read as vectors.
    """
    from fleetcount_evidence.replay.vectors import replay  # Loads the whole proof layer: only when asked.

    misses = unreadable = 0
    rows: list[dict[str, str]] = []
    for path in files:
        try:
            result = replay(path)
        except FleetcountError as error:
            rows.append({"file": str(path), "result": "unreadable", "text": f"BAD   {one_line(str(error))}"})
            unreadable += 1
        else:
            rows.append({"file": str(path), "result": "ok" if result.passed else "miss", "text": result.line})
            misses += not result.passed
    show(rows, (row["text"] for row in rows), as_json=as_json)
    if unreadable:
        raise UsageError(f"{unreadable} of {len(files)} files cannot be read as vectors")
    if misses:
        raise CheckFailedError(f"{misses} of {len(files)} files are not reproduced")

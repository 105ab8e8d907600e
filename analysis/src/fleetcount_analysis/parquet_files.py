"""One Parquet file through DuckDB, opened as exactly that file.

DuckDB takes a path for more than a path: `*`, `?` and `[` name other files, and a folder called `count=7` becomes a
column. Every Parquet file that is read or written goes through here, so that neither can happen.
"""

from pathlib import Path
from typing import Any, Final

from fleetcount_analysis.errors import ExportError

_MEMORY: Final = "512MB"


def open_database(memory: str = _MEMORY) -> Any:  # the library has no types
    """Return a DuckDB of one thread that fetches no extension and holds at most `memory`.

    Raises:
        ExportError: the package duckdb is not there.
    """
    duckdb = library()
    return duckdb.connect(config={"threads": 1, "memory_limit": memory, "autoinstall_known_extensions": False})


def library() -> Any:  # the library has no types
    """Return the library, loaded now.

    Raises:
        ExportError: it is not there.
    """
    try:
        import duckdb  # A tenth of a second, and needed for Parquet alone.
    except ModuleNotFoundError as error:
        raise ExportError("Parquet needs the package duckdb, which comes with fleetcount[analysis]") from error
    return duckdb


def rows_of(path: Path) -> str:
    """Return the SQL that stands for the rows of a file, as they stand in it."""
    return f"read_parquet({read_path(path)}, hive_partitioning = false, union_by_name = false)"


def read_path(path: Path) -> str:
    """Return the SQL text of the path of a file that is read, every character of it as it is."""
    return _text("".join(f"[{character}]" if character in "*?[" else character for character in str(path)))


def written_path(path: Path) -> str:
    """Return the SQL text of the path of a file that is written: there `*`, `?` and `[` are characters like others."""
    return _text(str(path))


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"

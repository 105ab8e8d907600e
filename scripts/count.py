#!/usr/bin/env python3
"""Count the code of each package: files, lines of code, statements.

    scripts/count.py [COMMIT ...]    the tree, and beside it the same of each commit

A line of code is one that is neither blank nor only a comment nor part of a docstring; generated files are left out.
"""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent


def sources(commit: str | None) -> Iterator[tuple[str, str]]:
    """Yield the package and the text of every source file of the product."""
    listed = (
        ["git", "ls-tree", "-r", "--name-only", commit] if commit else ["git", "ls-files", "-co", "--exclude-standard"]
    )
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    for name in names:
        if not name.endswith(".py") or "/src/" not in name or "_pb2" in name:
            continue
        if commit:
            shown = subprocess.run(
                ["git", "show", f"{commit}:{name}"], cwd=ROOT, capture_output=True, text=True, check=True
            )
            yield name.split("/")[0], shown.stdout
        elif (ROOT / name).exists():
            yield name.split("/")[0], (ROOT / name).read_text(encoding="utf-8")


def counted(text: str) -> tuple[int, int]:
    """Return the lines of code and the statements of a module."""
    tree = ast.parse(text)
    strings: set[int] = set()
    statements = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            strings |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.stmt):
            statements += 1
    lines = text.split("\n")
    code = sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in strings
        for number, line in enumerate(lines, start=1)
    )
    return code, statements


def main(commits: list[str]) -> None:
    """Print a row a package."""
    tables: list[tuple[str, dict[str, Counter[str]]]] = []
    for commit in [*commits, None]:
        table: dict[str, Counter[str]] = {}
        for package, text in sources(commit):
            code, statements = counted(text)
            for key in (package, "all"):
                table.setdefault(key, Counter()).update(files=1, code=code, statements=statements)
        tables.append((commit or "the tree", table))
    print("package".ljust(14), *(f"{name:>28}" for name, _ in tables))
    print(" " * 14, *(f"{'files':>8}{'code':>10}{'statements':>10}" for _ in tables))
    for package in sorted({one for _, table in tables for one in table}, key=lambda one: (one == "all", one)):
        rows = (table.get(package, Counter()) for _, table in tables)
        print(package.ljust(14), *(f"{row['files']:>8}{row['code']:>10}{row['statements']:>10}" for row in rows))


if __name__ == "__main__":
    main(sys.argv[1:])

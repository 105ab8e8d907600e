"""The page for analysts: its examples run, in order, and its figures are those that the code gives."""

import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from fleetcount_analysis import answers
from fleetcount_analysis.answers.hierarchy import consistent, even_variances, levels_of_grid
from fleetcount_analysis.answers.sides import compare_one_sided
from fleetcount_mechanisms.noise import GaussianNoise

PAGE = (Path(__file__).parents[3] / "docs" / "answers.md").read_text(encoding="utf-8")


def rows_after(heading: str) -> list[list[str]]:
    """Return the cells of the table whose first row starts with a heading."""
    lines = PAGE.partition(f"| {heading} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_examples_run() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}

    for block in blocks:
        exec(compile(block, "docs/answers.md", "exec"), names)  # the page's own code

    assert len(blocks) >= 8


def test_every_public_name_loads() -> None:
    assert sorted(answers.__all__) == dir(answers)
    for name in answers.__all__:
        assert getattr(answers, name).__name__ == name


def test_the_table_of_zooms_is_computed() -> None:
    for levels, *sds in rows_after("levels"):
        pyramid = levels_of_grid(16, 16, int(levels))
        laws = [GaussianNoise(one) for one in even_variances(pyramid, Fraction(1, 10))]
        counts = [np.full(size, 100) for size in pyramid.sizes]
        found = consistent(pyramid, counts, laws, 2, Fraction(19, 20))
        errors = {256 // size: float(one[0]) for size, one in zip(pyramid.sizes, found.standard_errors, strict=True)}
        coarsest = max(errors)
        for area, shown in zip((1, 4, 16, 64, 256), sds, strict=True):
            # An area of several of the coarsest squares is a sum of independent counts.
            exact = errors[area] if area <= coarsest else errors[coarsest] * (area / coarsest) ** 0.5
            assert float(shown) == pytest.approx(exact, abs=0.06)


def test_the_table_of_the_sparse_vector_is_computed() -> None:
    counts = [i % 3 for i in range(198)] + [20, 20]
    for epsilon, moved, every, sparse in rows_after("epsilon"):
        found = compare_one_sided(counts, [5] * 200, Fraction(epsilon), moved=int(moved), aborts=(1,))
        assert (f"{found.every_cell:.1f}", f"{found.sparse[1]:.1f}") == (every, sparse)

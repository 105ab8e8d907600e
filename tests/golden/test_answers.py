"""The golden rows of answers are those that plain fractions give, computed apart from the product."""

import ast
import json
from pathlib import Path

from tests.golden import answers


def test_the_file_holds_what_the_formulas_give() -> None:
    assert json.loads(answers.FILE.read_text(encoding="utf-8")) == json.loads(json.dumps(answers.groups()))


def test_the_formulas_import_nothing_of_the_product() -> None:
    tree = ast.parse(Path(answers.__file__).read_text(encoding="utf-8"))
    from_modules = {str(one.module) for one in ast.walk(tree) if isinstance(one, ast.ImportFrom)}
    names = {name.name for one in ast.walk(tree) if isinstance(one, ast.Import) for name in one.names}

    assert {one.split(".")[0] for one in from_modules | names} == {
        "collections",
        "decimal",
        "fractions",
        "json",
        "pathlib",
        "sys",
        "typing",
    }

"""`fleetcount microdata`: publish a table of persons as two tables joined by buckets.

Reads the table and the specification, writes the whole output or nothing; it must not find buckets itself. Every random
choice comes from the operating system's generator; there is no seed, since its owner could restore the records' order.
"""

import contextlib
import json
import textwrap
from collections.abc import Generator
from fractions import Fraction
from pathlib import Path
from typing import Final, cast

import click
from fleetcount_analysis.csv_texts import csv_table
from fleetcount_evidence.buckets.setting import UnsatisfiableError
from fleetcount_evidence.microdata.publication import Publication, publish
from fleetcount_evidence.microdata.report import Report, report_text, summarise
from fleetcount_evidence.microdata.request import Algorithm, LinearRule, PublicationRequest
from fleetcount_evidence.microdata.table import BUCKET_COLUMN, ColumnRoles, MicrodataError, read_table
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.errors import UsageError
from fleetcount_transport.toml_table import Table, read_toml
from fleetcount_transport.toml_values import Range

from fleetcount import __version__
from fleetcount.command.base import JSON, RefusedByPolicyError, StrictCommand, show
from fleetcount.command.options import PATH, check_output_directory, read_text
from fleetcount.command.outputs import staged_directory

ACKNOWLEDGEMENT: Final = "anonymised, not differentially private"
EXAMPLE_SPEC: Final = f'''\
acknowledge = "{ACKNOWLEDGEMENT}"
quasi_identifiers = ["age", "district"]
drop = ["name"]
[thresholds]
flu = "31/50"
asthma = "0.5"
hiv = "0.2"
'''
_KEYS: Final = (
    "acknowledge",
    "quasi_identifiers",
    "drop",
    "allow_unique",
    "algorithm",
    "sizes",
    "fakes",
    "association_support",
    "thresholds",
    "rule",
)
_THRESHOLD: Final = Range("(0, 1]")
_THETA: Final = Range("[1, 1000000]")
_OFFSET: Final = Range("[0, 1]")
_HELP: Final = f"""Publish a table of persons so that no sensitive value is too likely for anybody in it.

Records are put into buckets. One published table says which attributes are in which bucket, the other which sensitive
values are, and how often. A reader who finds a person's bucket believes a value with its share in the bucket, and that
share is at most the value's own threshold: F'-privacy. What this is not: the tables are anonymised, not differentially
private; somebody has to be trusted with the raw table; two publications of one table can be intersected.

TABLE.csv has a header and commas. Every column must have a part: sensitive, quasi-identifier (published exactly) or
drop (left out); identifiers are to be dropped. SPEC.toml gives each value of the sensitive column its threshold, exact
and as text:

\b
{textwrap.indent(EXAMPLE_SPEC, "  ").rstrip()}

In place of [thresholds] a rule for all values, f' = min(1, theta f + offset), f the value's share of the table:

\b
  [rule]
  theta = "4"
  offset = "0.02"

Also: algorithm = "multi-size" (default), "two-size", "optimal" (few values) or "anatomy" (distinct values in every
bucket); sizes = [2, 50], the smallest and largest bucket; fakes = 2 adds false values to every bucket of "anatomy",
against readers who know the values of others, and association_support = 30 keeps out those that never go with an
attribute though both occur 30 times; allow_unique = ["age"] for an attribute that differs in every record.

DIR gets quasi_identifiers.csv and sensitive.csv, to publish, and report.txt and report.json, to keep. It must be new
or empty: publish a table once. All orders are random, from the system's generator.

Exit codes: 0 done, 2 usage or bad input, 3 the thresholds cannot be kept, 5 this machine (disk).
"""


@click.command(cls=StrictCommand, help=_HELP)
@click.option("--input", "table_path", required=True, metavar="TABLE.csv", type=PATH, help="The raw table.")
@click.option("--sensitive", required=True, metavar="COLUMN", help="The column to protect.")
@click.option("--spec", "spec_path", required=True, metavar="SPEC.toml", type=PATH, help="Columns and thresholds.")
@click.option("--output", required=True, metavar="DIR", type=PATH, help="A new or empty directory.")
@JSON
def microdata(table_path: Path, sensitive: str, spec_path: Path, output: Path, as_json: bool) -> None:
    """Read, publish and write; the help is `_HELP`."""
    _check_output(output)
    roles, request = _read_spec(spec_path, sensitive)
    publication = _published(table_path, roles, spec_path, request)
    report = summarise(publication, roles, request, __version__)
    with staged_directory(output) as stage:
        _write(stage, publication, report, roles)
        _check_output(output)
    show(report, _said(output, report), as_json=as_json)


def _check_output(output: Path) -> None:
    if (output / "sensitive.csv").exists():
        raise UsageError(
            f"output {str(output)[:120]!r} holds a publication already; two publications of one table can be "
            "intersected: choose a new directory only for another table"
        )
    check_output_directory(output, fresh=True)


def _published(table_path: Path, roles: ColumnRoles, spec_path: Path, request: PublicationRequest) -> Publication:
    text = read_text(table_path)
    with _blamed_on(table_path):
        table = read_table(text, roles)
    try:
        with _blamed_on(spec_path):
            return publish(table, request, SystemRandom())
    except UnsatisfiableError as error:
        raise RefusedByPolicyError(f"cannot be satisfied: {error}") from error


@contextlib.contextmanager
def _blamed_on(path: Path) -> Generator[None]:
    """Put the file's name before what is wrong with it."""
    try:
        yield
    except MicrodataError as error:
        raise UsageError(f"{path}: {error}") from error


# The specification.


def _read_spec(path: Path, sensitive: str) -> tuple[ColumnRoles, PublicationRequest]:
    table = read_toml(path, _KEYS)
    if table.raw("acknowledge") != ACKNOWLEDGEMENT:
        raise table.refuse("acknowledge", f"{ACKNOWLEDGEMENT!r}, to say that this is understood")
    algorithm = Algorithm(table.choice("algorithm", [one.value for one in Algorithm], Algorithm.MULTI_SIZE.value))
    if table.has("sizes") and algorithm is Algorithm.ANATOMY:
        raise table.refuse("sizes", "nothing: 'anatomy' takes the sizes that its diversity needs")
    smallest, largest = _sizes(table)
    with _blamed_on(path):
        roles = ColumnRoles(
            quasi_identifiers=_names(table, "quasi_identifiers"),
            sensitive=sensitive,
            drop=_names(table, "drop"),
            allow_unique=_names(table, "allow_unique"),
        )
        return roles, PublicationRequest(
            thresholds=_thresholds(table),
            algorithm=algorithm,
            smallest=smallest,
            largest=largest,
            fakes=table.integer("fakes", 0, 1_000, 0),
            association_support=_support(table),
        )


def _names(table: Table, key: str) -> tuple[str, ...]:
    value = table.raw(key) if table.has(key) else []
    names = cast("list[object]", value) if isinstance(value, list) else [None]
    if not all(isinstance(name, str) for name in names):
        raise table.refuse(key, 'a list of column names: ["age", "district"]')
    return tuple(cast("list[str]", names))


def _sizes(table: Table) -> tuple[int | None, int]:
    if not table.has("sizes"):
        return None, 50
    value = table.raw("sizes")
    sizes = cast("list[object]", value) if isinstance(value, list) else []
    if len(sizes) != 2 or not all(type(size) is int for size in sizes):
        raise table.refuse("sizes", "two whole numbers, the smallest and the largest bucket: [2, 50]")
    smallest, largest = cast("list[int]", sizes)
    return smallest, largest


def _support(table: Table) -> int | None:
    return table.integer("association_support", 1, 1_000_000) if table.has("association_support") else None


def _thresholds(table: Table) -> dict[str, Fraction] | LinearRule:
    if table.has("thresholds") == table.has("rule"):
        raise table.refuse("thresholds", "exactly one of [thresholds], one per value, and [rule]")
    if table.has("thresholds"):
        values = table.section("thresholds", None)
        return {name: values.number(name, _THRESHOLD) for name in values.content}
    rule = table.section("rule", ("theta", "offset"))
    return LinearRule(theta=rule.number("theta", _THETA), offset=rule.number("offset", _OFFSET))


# What is written.


def _write(stage: Path, publication: Publication, report: Report, roles: ColumnRoles) -> None:
    attributes = ([bucket, *record] for bucket, record in publication.records)
    files = {
        "quasi_identifiers.csv": csv_table([BUCKET_COLUMN, *roles.quasi_identifiers], attributes),
        "sensitive.csv": csv_table([BUCKET_COLUMN, "value", "count"], publication.values),
        "report.json": json.dumps(report, ensure_ascii=False, indent=2) + "\n",
        "report.txt": report_text(report),
    }
    for name, content in files.items():
        file = stage / name
        file.touch(mode=0o600 if name.startswith("report") else 0o644)
        file.write_text(content, encoding="utf-8", newline="")


def _said(output: Path, report: Report) -> list[str]:
    sizes = [entry["size"] for entry in report["sizes"]]
    return [
        f"{report['records']} records of {len(report['values'])} values in {report['buckets']} buckets of "
        f"{min(sizes)} to {max(sizes)}; loss {report['loss']}",
        f"publish {output / 'quasi_identifiers.csv'} and {output / 'sensitive.csv'}",
        f"keep {output / 'report.txt'} and {output / 'report.json'}",
        f"{ACKNOWLEDGEMENT}; publish this table once: two publications can be intersected",
    ]

"""The report to a table's holder about a publication: the request, the loss, and a reader's worst posteriors.

It is for the holder only: it contains the counts that fake values hide. It writes no file.
"""

import textwrap
from collections import Counter
from decimal import ROUND_CEILING
from fractions import Fraction
from typing import Final, TypedDict

from fleetcount_analysis.errors import RangeError
from fleetcount_analysis.interval_words import number_text

from fleetcount_evidence.buckets.anatomy import anatomy_loss, anatomy_possible, equivalent_diversity
from fleetcount_evidence.buckets.corruption import exclusion_certainty
from fleetcount_evidence.microdata.publication import Publication
from fleetcount_evidence.microdata.request import Algorithm, LinearRule, PublicationRequest
from fleetcount_evidence.microdata.table import ColumnRoles

LIMITS: Final = (
    "Anonymised, not differentially private: no epsilon holds for these tables.",
    "The raw table had a holder who could read all of it; the guarantee is about readers of the two tables only.",
    "Publish one table once. Two publications of the same persons, or of nearly the same, can be intersected: where "
    "a person's two buckets share one value only, it is known.",
    "A posterior is a value's share in the person's bucket. It holds for a reader who knows everybody in the table by "
    "the quasi-identifiers and knows nothing else about the values. One who knows the values of others in the bucket "
    "excludes them; one who learns from all buckets together which attributes go with which value infers more.",
    "Quasi-identifiers are published exactly: who is in the table is not hidden.",
    "This report is the holder's: publish the two tables, not the report.",
)
_FAKES: Final = (
    "The certainty that a value is real holds for a reader who cannot tell a fake by how rare it is, or by the way the "
    "fakes were chosen; every total taken from the sensitive table is distorted by them."
)


_WIDTH: Final = 100


class ColumnReport(TypedDict):
    """A quasi-identifier and its number of different values."""

    column: str
    values: int


class Asked(TypedDict):
    """The request with its defaults filled in; numbers are exact."""

    quasi_identifiers: list[ColumnReport]
    sensitive: str
    dropped: list[str]
    algorithm: str
    sizes: str
    thresholds: str
    fakes: int
    association_support: int | None


class SizeReport(TypedDict):
    """`buckets` buckets of `size` records."""

    size: int
    buckets: int


class ValueReport(TypedDict):
    """A sensitive value; fractions are exact, as text."""

    value: str
    records: int
    share: str
    threshold: str
    worst_posterior: str


class DiversityReport(TypedDict):
    """The least l-diversity that implies the thresholds, and its loss; None where no such buckets exist."""

    diversity: int
    possible: bool
    loss: int | None


class CertaintyReport(TypedDict):
    """The certainty of a reader, who excluded `excluded` records of the smallest bucket, that a value in it is real."""

    excluded: int
    certainty: str


class Report(TypedDict):
    """The whole report; it can be written as JSON."""

    version: str
    asked: Asked
    records: int
    unique_records: int
    buckets: int
    sizes: list[SizeReport]
    loss: int
    mean_squared_error: str
    equivalent: DiversityReport
    values: list[ValueReport]
    certainty: list[CertaintyReport]
    limits: list[str]


def summarise(publication: Publication, roles: ColumnRoles, request: PublicationRequest, version: str) -> Report:
    """Return the report of a publication; values in descending order of their worst posterior.

    Loss and mean squared error are those of [INF, Equations 1 and 2]; `version` is the program's.
    """
    setting = publication.setting
    combinations = Counter(attributes for _, attributes in publication.records)
    return Report(
        version=version,
        asked=_asked(publication, roles, request),
        records=setting.records,
        unique_records=sum(number == 1 for number in combinations.values()),
        buckets=sum(size.buckets for size in setting.sizes),
        sizes=[SizeReport(size=size.size, buckets=size.buckets) for size in setting.sizes],
        loss=setting.loss,
        mean_squared_error=str(setting.mean_squared_error),
        equivalent=_equivalent(publication),
        values=_values(publication),
        certainty=_certainty(setting.sizes[0].size, request.fakes),
        limits=[*LIMITS, *([_FAKES] if request.fakes else [])],
    )


def _asked(publication: Publication, roles: ColumnRoles, request: PublicationRequest) -> Asked:
    rule = request.thresholds
    low = publication.domain.values.smallest_size if request.smallest is None else request.smallest
    columns = zip(*(attributes for _, attributes in publication.records), strict=True)
    return Asked(
        quasi_identifiers=[
            ColumnReport(column=column, values=len(set(values)))
            for column, values in zip(roles.quasi_identifiers, columns, strict=True)
        ],
        sensitive=roles.sensitive,
        dropped=list(roles.drop),
        algorithm=request.algorithm.value,
        sizes="" if request.algorithm is Algorithm.ANATOMY else f"{low} to {request.largest}",
        thresholds=f"min(1, {rule.theta} f + {rule.offset})" if isinstance(rule, LinearRule) else "one a value",
        fakes=request.fakes,
        association_support=request.association_support,
    )


def _equivalent(publication: Publication) -> DiversityReport:
    values = publication.domain.values
    diversity = equivalent_diversity(values.thresholds)
    possible = anatomy_possible(values.counts, diversity)
    try:
        loss = anatomy_loss(values.records, diversity) if possible else None
    except RangeError:  # |T| mod l is above the number of buckets: some bucket would need more than l + 1 records.
        loss = None
    return DiversityReport(diversity=diversity, possible=possible, loss=loss)


def _values(publication: Publication) -> list[ValueReport]:
    domain, values = publication.domain, publication.domain.values
    order = sorted(range(len(domain.names)), key=lambda i: (-publication.worst[i], domain.names[i]))
    return [
        ValueReport(
            value=domain.names[i],
            records=values.counts[i],
            share=str(Fraction(values.counts[i], values.records)),
            threshold=str(values.thresholds[i]),
            worst_posterior=str(publication.worst[i]),
        )
        for i in order
    ]


def _certainty(size: int, fakes: int) -> list[CertaintyReport]:
    """Return the certainty with no record excluded and with all but one ([INF, section 6]); nothing without fakes."""
    steps = sorted({0, size - 1}) if fakes else []
    return [CertaintyReport(excluded=r, certainty=str(exclusion_certainty(size, fakes, r))) for r in steps]


# The report as text.


def report_text(report: Report) -> str:
    """Return the report as text: its limits come first, then the request, the buckets and every value."""
    lines = ["Bucketised table: anonymised, not differentially private", "", "What this is not"]
    for limit in report["limits"]:
        lines += textwrap.wrap(limit, _WIDTH, initial_indent="* ", subsequent_indent="  ")
    lines += ["", "What was asked", *_asked_lines(report["asked"])]
    lines += ["", "What came out", *_outcome_lines(report)]
    lines += ["", "What a reader will believe, at worst", *_value_lines(report["values"])]
    return "\n".join([*lines, "", f"fleetcount {report['version']}"]) + "\n"


def _asked_lines(asked: Asked) -> list[str]:
    columns = ", ".join(f"{entry['column']} ({entry['values']} values)" for entry in asked["quasi_identifiers"])
    lines = [
        f"  quasi-identifiers  {columns}",
        f"  sensitive          {asked['sensitive']}",
        f"  dropped            {', '.join(asked['dropped']) or 'nothing'}",
        f"  algorithm          {asked['algorithm']}" + (f", sizes {asked['sizes']}" if asked["sizes"] else ""),
        f"  thresholds         {asked['thresholds']}",
    ]
    if asked["fakes"]:
        support = asked["association_support"]
        rule = f", none that never goes with an attribute (support {support})" if support else ""
        lines.append(f"  fake values        {asked['fakes']} a bucket{rule}")
    return lines


def _outcome_lines(report: Report) -> list[str]:
    sizes = ", ".join(f"{entry['buckets']} of {entry['size']}" for entry in report["sizes"])
    equal = report["equivalent"]
    if equal["loss"] is not None:
        cost = f"with a loss of {equal['loss']}"
    else:
        cost = "which " + ("buckets of l and l + 1 cannot hold" if equal["possible"] else "this table cannot have")
    lines = [
        f"  records            {report['records']}, {report['unique_records']} of them with attributes no other has",
        f"  buckets            {report['buckets']}: {sizes}",
        f"  loss               {report['loss']}, mean squared error {_decimal(report['mean_squared_error'])}",
        f"  l-diversity        the same thresholds need l = {equal['diversity']}, {cost}",
    ]
    for entry in report["certainty"]:
        lines.append(
            f"  a value is real    with certainty {_decimal_up(entry['certainty'])} for a reader who has excluded "
            f"{entry['excluded']} of the smallest bucket"
        )
    return lines


def _value_lines(values: list[ValueReport]) -> list[str]:
    heads = ("records", "share", "worst posterior", "threshold")
    width = max(5, *(len(entry["value"]) for entry in values))
    lines = [f"  {'value':<{width}}" + "".join(f"  {head:>16}" for head in heads)]
    for entry in values:
        known = map(_decimal_up, (entry["worst_posterior"], entry["threshold"]))
        cells = (str(entry["records"]), _decimal(entry["share"]), *known)
        lines.append(f"  {entry['value']:<{width}}" + "".join(f"  {cell:>16}" for cell in cells))
    return lines


def _decimal(exact: str) -> str:
    """Return a fraction as a decimal of 4 significant digits; the exact one is in the JSON."""
    return f"{float(Fraction(exact)):.4g}"


def _decimal_up(exact: str) -> str:
    """Return what a reader knows at most, 0 to 1, as such a decimal, rounded up."""
    return number_text(float(Fraction(exact)), rounding=ROUND_CEILING)

"""`fleetcount reproduce`: run the papers' experiments and write figures, tables and claims.json.

Checks where results go, shows progress and sums up; the experiments belong to the evidence.
"""

from collections import Counter
from pathlib import Path
from typing import Final

import click
from fleetcount_protocol.errors import UsageError

from fleetcount.command.base import JSON, OneOf, StrictCommand, show
from fleetcount.command.options import PATH, SEED, check_output_directory
from fleetcount.command.outputs import staged_directory
from fleetcount.command.progress import progress_for

PAPERS: Final = ("sampling", "asymmetric", "geometric", "inferential")


@click.command(cls=StrictCommand, short_help="Run the papers' experiments: figures, tables and claims.json.")
@click.argument("paper", type=OneOf((*PAPERS, "all")))
@click.option(
    "--output",
    required=True,
    type=PATH,
    metavar="DIR",
    help="Where the figures (SVG and PNG), tables (CSV) and claims.json go; nothing appears before all is done.",
)
@click.option(
    "--data",
    type=PATH,
    metavar="DIR",
    help="A folder laid out like the repository's data/: what is in it replaces the extract shipped. A census file, "
    "census.csv or census.csv.gz with a header, is read from here alone.",
)
@click.option("--quick", is_flag=True, help="Small samples, fewer settings: under a minute, run times not judged.")
@click.option("--seed", type=SEED, default=1, show_default=True, metavar="N", help="Seed of the simulations.")
@click.option(
    "--sensitive",
    multiple=True,
    metavar="COLUMN",
    help="Sensitive column of the census file; repeat for more.  [default: Occupation and Education]",
)
@click.option(
    "--quasi-identifiers",
    metavar="COLUMN,...",
    default="",
    help="Columns of the census file that queries use.  [default: all others]",
)
@JSON
def reproduce(
    *,
    paper: str,
    output: Path,
    data: Path | None,
    quick: bool,
    seed: int,
    sensitive: tuple[str, ...],
    quasi_identifiers: str,
    as_json: bool,
) -> None:
    """Run the experiments of a paper, or of all four, on the data in the repository.

    \b
    sampling     Joy and Gerla, Differential Privacy By Sampling
    asymmetric   Takagi et al., Asymmetric Differential Privacy
    geometric    Ghosh et al., Universally Utility-Maximizing Privacy Mechanisms
    inferential  Wang et al., Inferential or Differential: Privacy Laws Dictate

    claims.json holds every claim with the paper's value, ours, the data both rest on, the tolerance, and a verdict:
    reproduced, or corrected, on what the claim speaks of; holds, or contradicted, on a stand-in, and by how much; not
    reproducible where nothing could be run; a check of arithmetic where agreement is no evidence. docs/papers.md
    explains them. The same seed gives the same numbers, run times excepted. All four take minutes on two cores.

    Exit code 0 when the experiments ran, whatever came out; 2 for a wrong option or data file; 130
    interrupted, with nothing written.
    """
    check_output_directory(output)
    if data is None and (sensitive or quasi_identifiers):
        raise UsageError("--sensitive and --quasi-identifiers describe the census file of --data, which is not given")
    # NumPy, SciPy and matplotlib load only now.
    from fleetcount_evidence.papers.experiments import run_experiments
    from fleetcount_evidence.papers.extracts import Census, Extracts
    from fleetcount_evidence.papers.results import Results, Settings
    from fleetcount_evidence.papers.verdicts import Reproduction

    columns = tuple(name.strip() for name in quasi_identifiers.split(",") if name.strip())
    census = Census(sensitive=sensitive or Census().sensitive, quasi_identifiers=columns)
    extracts = Extracts.shipped(data, census)
    names = PAPERS if paper == "all" else (paper,)
    with staged_directory(output) as stage, progress_for() as progress:
        results = Results(directory=stage, step=progress.step)
        run_experiments(names, extracts, Settings(quick=quick, seed=seed), results)
    verdicts = Counter(claim.verdict for claim in results.claims)
    lines = [f"{verdicts[verdict]:4d} claims: {verdict.value}" for verdict in Reproduction]
    found = {"claims": {verdict.value: verdicts[verdict] for verdict in Reproduction}, "written": str(output)}
    show(found, [*lines, f"figures, tables and claims.json: {output}"], as_json=as_json)

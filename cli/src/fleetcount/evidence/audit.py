"""`fleetcount audit`: attack every line of every privacy statement on the code that aggregators and devices run.

Checks where results go, shows progress and tells what broke; the attacks are the evidence's.
"""

from pathlib import Path
from typing import Final

import click

from fleetcount.command.base import JSON, CheckFailedError, StrictCommand, show
from fleetcount.command.options import PATH, Count, check_output_directory
from fleetcount.command.outputs import staged_directory
from fleetcount.command.progress import progress_for

_LEAST: Final = 1000
_MOST: Final = 10**12
_TRIALS: Final = 5_000_000
_QUICK: Final = 200_000
_DRAWS: Final = 1_000_000


@click.command(cls=StrictCommand, short_help="Attack every line of every privacy statement.")
@click.option(
    "--trials",
    type=Count(_LEAST, _MOST),
    metavar="N",
    help=f"Releases to make in all, {_LEAST} or more.  [default: {_TRIALS}, with --quick {_QUICK}]",
)
@click.option("--design", metavar="NAME", help="Only this one: sampling, k-ary, direct, one-window, ...")
@click.option("--quick", is_flag=True, help="Fewer trials and draws: about ten seconds of two cores.")
@click.option(
    "--output",
    type=PATH,
    metavar="DIR",
    help="Write audit.json, audit.csv, audit.svg and audit.png there; nothing appears before all is done.",
)
@JSON
def audit(*, trials: int | None, design: str | None, quick: bool, output: Path | None, as_json: bool) -> None:
    """Look for more loss than the privacy statements claim, in the code that is deployed.

    Two fleets differ in one device's truth. The aggregators' own noise, noised shares, opening and reading, and the
    devices' own coins make releases of both, for every design, 1 or 2 values and 2, 3 or 5 aggregators. For every line
    of each statement an event is chosen on one half of what that adversary sees and judged on the other half; exact
    (Clopper-Pearson) bounds at 99.9 % prove a loss. Claim, proved loss and gap are printed. The noise is checked too:
    its law, and independence across cells, releases, aggregators and restarts. Where each device is asked in one window
    of several the adversary sees in which, too, and that window is checked: uniform, and moved by no choice of a
    question.

    Half of the trials go to the yes/no count by Sampling Privacy at epsilon 1, where the gap is smallest: about 0.01
    at 10,000,000 and 0.003 at 100,000,000. The design "one-window" is all responses in one window of several. There is
    no seed: the randomness is the system's, as in a deployment. An audit can refute a claim; it cannot prove one.

    \b
    fleetcount audit --quick
    fleetcount audit --design sampling --trials 10000000 --output out/audit

    Exit code 0 when every claim stands, 1 when one is broken (said in one line), 2 for a wrong option, 130
    interrupted; then nothing is written.
    """
    if output is not None:
        check_output_directory(output)
    # NumPy, SciPy and the aggregator load only now.
    from fleetcount_evidence.audit.questions import questions
    from fleetcount_evidence.audit.report import audit_record, printed_lines, write_audit
    from fleetcount_evidence.audit.run import run_audit

    asked, draws = questions(design), _DRAWS // 10 if quick else _DRAWS
    with progress_for() as progress:
        found = run_audit(asked, trials or (_QUICK if quick else _TRIALS), draws=draws, step=progress.step)
    show(audit_record(found) if as_json else None, printed_lines(found), as_json=as_json)
    if output is not None:
        with staged_directory(output) as stage:
            write_audit(found, stage)
        click.echo(f"audit.json, audit.csv, audit.svg, audit.png: {output}", err=as_json)
    if found.failures:
        more = f" (and {len(found.failures) - 1} more)" if len(found.failures) > 1 else ""
        raise CheckFailedError(f"broken: {found.failures[0]}{more}")

"""`fleetcount demo --watch`: a page on this machine that shows the demo as it runs.

Tells the page what the demo knows; the page and its server are `fleetcount_site.watch`.
"""

import contextlib
import signal
import threading
from collections.abc import Generator
from types import FrameType
from typing import Final

import click
from fleetcount_data.streets import bologna_streets
from fleetcount_mechanisms.answers import Truth
from fleetcount_mechanisms.noise import NoNoise, TwoSidedNoise
from fleetcount_simulator.demo_scenarios import BOLOGNA_GRID
from fleetcount_simulator.network.run import WindowAsked
from fleetcount_site.watch.events import EventWriter, WatchedQuestion

from fleetcount.command.base import describe
from fleetcount.show.demo_question import DemoOptions, DemoQuestion

_COMMAND: Final = "fleetcount demo"
_STREETS_BY: Final = "Streets: SUMO Bologna scenario, DLR, EPL-2.0"


@contextlib.contextmanager
def watched(options: DemoOptions) -> Generator[EventWriter]:
    """Serve the page while the block runs and, if it ends well, until Ctrl-C.

    Raises:
        UsageError: the port is taken.
    """
    from fleetcount_site.watch.server import showing  # Needs the extra `site`, which the demo has only with --watch.

    with showing(options.port or 0) as shown:
        click.echo(f"watch it at {shown.address}")
        try:
            yield shown.teller
        except BaseException as error:  # Told to the page, and raised again.
            interrupted = isinstance(error, KeyboardInterrupt)
            how = (
                ("interrupted", "Somebody ended the demo.") if interrupted else ("failed", describe(error, _COMMAND)[1])
            )
            shown.teller.now(*how)
            raise
        shown.teller.now("released", f"The files are in {options.output}; this page stays until Ctrl-C.")
        click.echo(f"the page stays at {shown.address} until Ctrl-C")
        _wait_for_signal()
        shown.teller.now("closed", "The demo was ended with Ctrl-C. What you see is what was said last.")


def _wait_for_signal() -> None:
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        ended.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ended.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def tell_question(teller: EventWriter, question: DemoQuestion, options: DemoOptions) -> None:
    """Tell the page the question, then the result that the law expects."""
    scenario, network = question.scenario, question.network
    epsilon = network.release.noise_epsilon
    # The streets of Bologna lie under its own grid alone: the cars of SUMO drive in a made town.
    streets = bologna_streets() if scenario.domain == BOLOGNA_GRID else ()
    told = WatchedQuestion(
        text=scenario.question,
        domain=scenario.domain,
        answer=network.mechanism or Truth(scenario.domain.values),
        noise=NoNoise() if epsilon is None else TwoSidedNoise(epsilon),
        level=network.release.level,
        aggregators=options.aggregators,
        readings=scenario.readings[0],
        streets=[street.line for street in streets],
        streets_by=_STREETS_BY if streets else "",
    )
    teller.asked(told)
    teller.expected(told, options.seed)


def tell_result(teller: EventWriter, result: WindowAsked) -> None:
    """Hand the record to the page, where there is one."""
    if result.record is not None:
        teller.released(result.record, result.signatures)
        teller.now("released", "The record is signed; its files are being written.")

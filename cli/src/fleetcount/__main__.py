"""Entry point of the `fleetcount` command: the table of sub-commands, and errors turned into one line and an exit code.

Every sub-command is imported only when it is called.
"""

import contextlib
import os
import sys
import warnings
from collections.abc import Sequence

import click

from fleetcount import __version__
from fleetcount.command.base import ExitCode, LazyGroup, describe, interruption_of, table

_TABLE = table(
    [
        ("demo", "fleetcount.show.demo", "demo", "Count a fleet on this machine, from keys to picture."),
        ("operator", "fleetcount.groups", "operator", "Begin as an operator; join others; admit devices."),
        ("analyst", "fleetcount.groups", "analyst", "Begin as an analyst."),
        ("broker", "fleetcount.groups", "broker", "Begin as an MQTT broker."),
        ("keys", "fleetcount.groups", "keys", "Make the keys and configurations of a test deployment."),
        ("pki", "fleetcount.groups", "pki", "Enrol, renew and revoke: certificates and the deny list."),
        ("question", "fleetcount.groups", "question", "Create, sign, submit, follow and release a question."),
        ("aggregator", "fleetcount.groups", "aggregator", "Run one aggregator."),
        ("console", "fleetcount.run.console", "console", "Show the state of an aggregator on a page."),
        ("relay", "fleetcount.groups", "relay", "Carry many devices' reports to aggregators, unread."),
        ("device", "fleetcount.device_groups", "device", "Run one device; read its ledger and spool."),
        ("doctor", "fleetcount.run.doctor", "doctor", "Check a configuration, its keys, clock and peers."),
        ("health", "fleetcount.run.health", "health", "Whether a server of this machine lives, or is ready."),
        ("simulate", "fleetcount.study.simulate", "simulate", "What a fleet of any size will see: scenarios."),
        ("plan", "fleetcount.study.plan", "plan", "What a number of devices and an epsilon will give."),
        ("remap", "fleetcount.read.remap", "remap", "Read a release with your own prior and loss."),
        ("microdata", "fleetcount.study.microdata", "microdata", "Publish a table in F'-private buckets."),
        ("reproduce", "fleetcount.evidence.reproduce", "reproduce", "Run the papers' experiments."),
        ("audit", "fleetcount.evidence.audit", "audit", "Attack every line of every privacy statement."),
        ("golden", "fleetcount.evidence.golden", "golden", "Recompute golden numbers through the public API."),
        ("publish", "fleetcount.show.publish", "publish", "Static pages of releases, checked in the browser."),
        ("serve", "fleetcount.show.serve", "serve", "Serve published pages on this machine."),
        ("verify", "fleetcount.read.release", "verify", "Check who signed a release."),
        ("vectors", "fleetcount.evidence.vectors", "vectors", "Replay test vectors of shares and proofs."),
    ]
)
_WITH_KEYS = frozenset(
    {
        "analyst",
        "aggregator",
        "broker",
        "console",
        "device",
        "doctor",
        "keys",
        "operator",
        "pki",
        "question",
        "relay",
    }
)
"""Sub-commands that read or make private keys, coins or shares of a real deployment."""


@click.group(
    cls=LazyGroup,
    lazy=_TABLE,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 a check failed, 2 usage or bad input, 3 refused by policy or protocol, "
    "4 cannot reach a party, 5 this machine (disk, store), 130 interrupted.",
)
@click.version_option(__version__, prog_name="fleetcount", message="%(prog)s %(version)s")
def cli() -> None:
    """Count a fleet without tracking it.

    Devices answer counting questions by Sampling Privacy or a randomized response, in secret shares; aggregators that
    do not collude add them up; only noised counts come out, each with its interval and its privacy statement.

    Start with `fleetcount demo`.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit with a documented code; errors are one line on stderr."""
    # The core of gRPC writes every connection that fails between our own lines.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # And it stops its threads at every fork, also of one that only begins another program, as all of ours do.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    # NumPy's and SciPy's linear algebra begin a thread for every core at their import, and each spins for a tenth of a
    # second; of all our products only that of a remap over thousands of counts, a fifth of its time, could be shared.
    # A process that this one begins inherits it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for stream in (sys.stdout, sys.stderr):
        # A name that is not UTF-8, or a terminal that is not, must not end in a traceback.
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")
    code = run_command(list(sys.argv[1:] if arguments is None else arguments))
    # CPython remembers an interruption that left a text given to exec (of a dataclass, at an import) as one that nobody
    # caught, whoever caught it, and then ends by the signal whatever the exit code; the next such text forgets it.
    exec("")  # noqa: S102 - the empty text
    sys.exit(code)


def run_command(arguments: list[str]) -> int:
    """Run the command and return its exit code; an error is one line on stderr (with FLEETCOUNT_DEBUG=1, raised)."""
    stdout = sys.stdout
    debugging = os.environ.get("FLEETCOUNT_DEBUG") == "1"
    if arguments and arguments[0] in _WITH_KEYS:
        from fleetcount_transport import hardening  # Before anything is read; nobody else pays for the import.

        hardening.keep_out_of_dumps()
    try:
        code = cli.main(args=arguments, prog_name="fleetcount", standalone_mode=False)
        _flush()
    except SystemExit as ended:
        if sys.stdout is not stdout:
            # click met a broken pipe and replaced the stream: the reader went away (| head), nothing is left to say.
            return ExitCode.OK
        return ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    except BrokenPipeError:
        _silence()
        return ExitCode.OK
    except (Exception, KeyboardInterrupt) as error:  # The top of the program: every error becomes one line.
        if interruption_of(error) is not None:
            return _report_interruption(error, arguments)
        if debugging:
            raise
        return _report(error, arguments)
    return code if isinstance(code, int) and not isinstance(code, bool) else ExitCode.OK


def _report(error: BaseException, arguments: list[str]) -> int:
    command = " ".join(["fleetcount", *(word for word in arguments[:1] if word in _TABLE)])
    code, line = describe(error, command)
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(line, file=sys.stderr, flush=True)
    try:
        _flush()
    except (OSError, ValueError):
        # What stdout does not take now it will not take at the end either, where the interpreter would say so again.
        _silence()
    return int(code)


def _report_interruption(error: BaseException, arguments: list[str]) -> int:
    """Report it, and say nothing of objects that it met in their making: CPython prints what their own end raises.

    An event loop is one: its end misses the socket that it had not got yet, and its coroutine was never awaited.
    """
    hook = sys.unraisablehook
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.unraisablehook = lambda _: None
        try:
            code = _report(error, arguments)
            # The frames hold those objects; they end here.
            error.__traceback__ = error.__context__ = error.__cause__ = None
        finally:
            sys.unraisablehook = hook
    return code


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()


def _silence() -> None:
    """Point stdout at nothing, so that the interpreter's own last flush meets neither a broken pipe nor a full disk."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()

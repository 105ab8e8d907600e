"""Every family of errors has its exit code, and an error is one printable line."""

import pytest
from fleetcount.command.base import (
    CannotReachError,
    CheckFailedError,
    ExitCode,
    RefusedByPolicyError,
    describe,
    one_line,
)
from fleetcount.run.device import reason_of
from fleetcount_client.contact import Outcome, OutcomeKind
from fleetcount_protocol.errors import DecodeError, MachineError, PeerError, RejectReason, UsageError
from fleetcount_protocol.ids import WindowId


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CheckFailedError("a miss"), ExitCode.CHECK_FAILED),
        (UsageError("wrong"), ExitCode.USAGE),
        (RefusedByPolicyError("no"), ExitCode.REFUSED),
        (PeerError("no"), ExitCode.REFUSED),
        (DecodeError("no"), ExitCode.REFUSED),
        (CannotReachError("away"), ExitCode.CANNOT_REACH),
        (ConnectionRefusedError("away"), ExitCode.CANNOT_REACH),
        (MachineError("full"), ExitCode.MACHINE),
        (ZeroDivisionError("a bug"), ExitCode.MACHINE),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
    ],
)
def test_a_family_of_errors_has_its_code(error: BaseException, code: ExitCode) -> None:
    assert describe(error)[0] is code


def test_an_interruption_that_a_library_wrapped_is_one() -> None:
    class Named:
        def __set_name__(self, owner: type, name: str) -> None:
            raise KeyboardInterrupt

    with pytest.raises((RuntimeError, KeyboardInterrupt)) as wrapped:
        type("Owner", (), {"named": Named()})

    assert describe(wrapped.value) == (ExitCode.INTERRUPTED, "fleetcount: interrupted")


@pytest.mark.timeout(10)
def test_errors_that_were_raised_from_one_another_in_a_circle_are_described() -> None:
    one, other = UsageError("one"), UsageError("other")
    one.__cause__, other.__cause__ = one, one

    assert describe(one) == (ExitCode.USAGE, "fleetcount: one")
    one.__cause__ = other
    assert describe(one) == (ExitCode.USAGE, "fleetcount: one")


def test_control_characters_of_a_message_do_not_reach_the_terminal() -> None:
    assert one_line("a\x1b[31mb\r\tc\nd\u202ee") == "a [31mb c d e"


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("grpc", "grpcio", "grpc"),
        ("aiomqtt", "aiomqtt", "mqtt"),
        ("numpy", "numpy", "analysis"),
        ("duckdb", "duckdb", "analysis"),
        ("numba", "numba", "aggregator"),
        ("grpc_health", "grpcio-health-checking", "aggregator"),
        ("h3", "h3", "simulator"),
        ("libsumo", "eclipse-sumo", "traffic"),
        ("psycopg", "psycopg", "postgres"),
        ("pkcs11", "python-pkcs11", "pkcs11"),
        ("dask", "distributed", "scale"),
        ("starlette", "starlette", "site"),
    ],
)
def test_a_library_that_is_not_installed_is_named_with_the_extra_that_brings_it(
    module: str, package: str, extra: str
) -> None:
    code, line = describe(ModuleNotFoundError("No module", name=f"{module}.inner"))

    assert code is ExitCode.USAGE
    assert f"{package!r}: pip install 'fleetcount[{extra}]'" in line


@pytest.mark.parametrize("module", ["numpy", "grpc", "numba", "duckdb", "uvicorn", "rich"])
def test_a_command_that_needs_many_libraries_names_the_extra_with_all_of_them(module: str) -> None:
    line = describe(ModuleNotFoundError("No module", name=module), "fleetcount demo")[1]

    assert "pip install 'fleetcount[all]' (" in line
    # What the extra does not bring is named with its own.
    traffic = describe(ModuleNotFoundError("No module", name="libsumo"), "fleetcount demo")[1]
    assert "pip install 'fleetcount[traffic]' (" in traffic


def test_a_library_that_nothing_runs_without_and_one_of_nobody_are_named_without_an_extra() -> None:
    assert "install fleetcount anew" in describe(ModuleNotFoundError("No module", name="Crypto.Hash"))[1]
    for name in ("pandas", "polars", "unheard_of"):
        package = name.replace("_", "-")
        assert f"{package!r}: pip install {package} (" in describe(ModuleNotFoundError("No module", name=name))[1]


def test_a_module_of_our_own_that_is_missing_is_a_bug() -> None:
    code, line = describe(ModuleNotFoundError("No module named 'fleetcount_x'", name="fleetcount_x"))

    assert (code, "a bug" in line) == (ExitCode.MACHINE, True)


def test_a_device_whose_certificate_is_not_taken_says_what_that_means() -> None:
    def said(reason: str) -> str:
        return reason_of(Outcome(window_id=WindowId(bytes(32)), name="fast", kind=OutcomeKind.REJECTED, reason=reason))

    assert said(RejectReason.BAD_CERTIFICATE.label) == (
        "bad_certificate: an aggregator does not take this certificate: it is denied there, or ends before the window"
        " does"
    )
    assert said(RejectReason.EXPIRED.label) == "expired"

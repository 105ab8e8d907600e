"""Every family of errors has its exit code, and an error is one printable line."""

import pytest
from fleetcount.exits import CannotReachError, CheckFailedError, ExitCode, RefusedByPolicyError, describe, one_line
from fleetcount_protocol.errors import DecodeError, MachineError, PeerError, UsageError


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


def test_control_characters_of_a_message_do_not_reach_the_terminal() -> None:
    assert one_line("a\x1b[31mb\r\tc\nd\u202ee") == "a [31mb c d e"

"""Compiled code that differs from plain Python, or cannot be had, is noticed before its first use and not used."""

import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fleetcount_aggregator.verification import self_check as kernel_check
from fleetcount_aggregator.verification.choice import combine, new_batch_verifier
from fleetcount_aggregator.verification.self_check import may_combine, may_verify
from fleetcount_kernel import verifier as kernel
from fleetcount_kernel.proofs import ProofBatch, VerifiedBatch, VerifierSetting
from fleetcount_protocol.vdaf.prio3 import Prio3, prio3_bits, prio3_one_hot, prio3_two_round

# The first test on a machine compiles.
pytestmark = pytest.mark.timeout(600)

CTX = b"FCT1" + bytes(32)


@pytest.fixture(autouse=True)
def unchecked() -> Iterator[None]:
    forget()
    yield
    forget()


def forget() -> None:
    kernel_check._agrees.cache_clear()
    kernel_check._covered.cache_clear()


def setting(prio3: Prio3, aggregator: int) -> VerifierSetting:
    return VerifierSetting(prio3=prio3, verify_key=bytes(32), ctx=CTX, aggregator=aggregator)


@pytest.mark.parametrize("prio3", [prio3_two_round(9, 2), prio3_two_round(9, 3), prio3_one_hot(5, 2), prio3_bits(7, 2)])
def test_compiled_code_of_this_machine_is_used(prio3: Prio3) -> None:
    assert all(may_verify(prio3, place) for place in range(prio3.shares))
    assert may_combine(prio3)
    assert new_batch_verifier(setting(prio3, 1)).name == "kernel"


@pytest.mark.parametrize("column", ["reasons", "seeds", "verifier_shares", "output_sum"])
def test_one_wrong_bit_in_any_column_is_noticed(
    column: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = kernel.KernelBatchVerifier.verify

    def wrong(self: kernel.KernelBatchVerifier, batch: ProofBatch) -> VerifiedBatch:
        answer = right(self, batch)
        value = bytearray(getattr(answer, column))
        value[-1] ^= 1
        return replace(answer, **{column: bytes(value)})

    monkeypatch.setattr(kernel.KernelBatchVerifier, "verify", wrong)

    assert new_batch_verifier(setting(prio3_two_round(9, 2), 0)).name == "arrays"
    assert new_batch_verifier(setting(prio3_two_round(9, 2), 0), prefer="kernel").name == "kernel"
    assert [record.levelno for record in caplog.records if "not used" in record.message] == [logging.ERROR]


def test_a_wrong_sum_of_single_reports_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel.KernelBatchVerifier, "sum_outputs", lambda self, _: bytes(self.setting.output_sum_size))

    assert not may_verify(prio3_one_hot(5, 2), 1)


@pytest.mark.parametrize("error", [OSError("no room"), ImportError("damaged"), SystemError("no such instruction")])
def test_what_cannot_be_compiled_or_loaded_is_done_without(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(kernel, "make_ready", fail)
    prio3 = prio3_one_hot(5, 2)

    assert new_batch_verifier(setting(prio3, 1)).name == "arrays"
    assert combine(prio3, CTX, [b"", b""]) == (b"", b"")
    assert sum(type(error).__name__ in record.message for record in caplog.records) == 2


def test_a_library_that_cannot_be_loaded_is_not_needed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "fleetcount_kernel.plan", None)
    prio3 = prio3_one_hot(5, 2)

    assert new_batch_verifier(setting(prio3, 1)).name == "arrays"
    assert "a slower one is: ModuleNotFoundError" in caplog.text


def test_a_wrong_decision_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that finds every proof good is as wrong as code that finds none good."""
    right = kernel.combine_batch

    def everything_holds(prio3: Prio3, ctx: bytes, shares: Any) -> tuple[bytes, bytes]:
        messages, holds = right(prio3, ctx, shares)
        return messages, b"\1" * len(holds)

    monkeypatch.setattr(kernel, "combine_batch", everything_holds)
    prio3 = prio3_two_round(9, 2)
    shares = [b"\xff" * prio3.verifier_share_size] * 2

    assert combine(prio3, CTX, shares, prefer="kernel")[1] == b"\1"
    assert combine(prio3, CTX, shares)[1] == b"\0"


def test_a_check_is_made_once_a_process_for_windows_of_every_size() -> None:
    assert may_verify(prio3_one_hot(5, 2), 0)
    assert may_verify(prio3_one_hot(1000, 2), 0)

    assert kernel_check._agrees.cache_info().misses == 1

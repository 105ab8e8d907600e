"""Which implementation verifies on this machine: compiled code where it can be trusted, otherwise NumPy.

All give the same bytes (`proofs`, `arrays`, `kernel`); here it is only decided which is asked.
"""

import importlib.util
import sys
from collections.abc import Sequence
from typing import Literal

from fleetcount_kernel.arrays import ArrayBatchVerifier
from fleetcount_kernel.proofs import BatchVerifier, ScalarBatchVerifier, VerifierSetting, combine_one_by_one
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.vdaf.prio3 import Prio3

Prefer = Literal["auto", "scalar", "kernel", "arrays"]
"""Which implementation: the fastest that works here, plain Python, the compiled one and no other, or NumPy's."""


def new_batch_verifier(setting: VerifierSetting, *, prefer: Prefer = "auto") -> BatchVerifier:
    """Return the verifier to use for this setting on this machine; its `name` says which one it is.

    "auto" takes compiled code where Numba is installed, the circuit is one of a window and a process's first check
    finds that it agrees with plain Python (`self_check`), otherwise NumPy. The first call on a machine compiles
    (`fleetcount_kernel.compiling`). Raises UsageError when `prefer` is "kernel" and there is no compiled verifier for
    this setting or on this machine.
    """
    if prefer == "scalar":
        return ScalarBatchVerifier(setting)
    if prefer == "arrays" or (prefer == "auto" and not _kernel_verifies(setting)):
        return ArrayBatchVerifier(setting)
    # Loaded only here: Numba takes a second, and need not be installed for the others.
    from fleetcount_kernel.verifier import KernelBatchVerifier

    return KernelBatchVerifier(setting)


def numba_is_of_use() -> bool:
    """Return whether Numba is here and the machine stores words as the wire does."""
    return sys.byteorder == "little" and importlib.util.find_spec("numba") is not None


def _kernel_verifies(setting: VerifierSetting) -> bool:
    if not numba_is_of_use():
        return False
    from fleetcount_aggregator.verification.self_check import may_verify

    return may_verify(setting.prio3, setting.aggregator)


def _kernel_combines(prio3: Prio3) -> bool:
    if not numba_is_of_use():
        return False
    from fleetcount_aggregator.verification.self_check import may_combine

    return may_combine(prio3)


def combine(prio3: Prio3, ctx: bytes, shares: Sequence[bytes], *, prefer: Prefer = "auto") -> tuple[bytes, bytes]:
    """Return (messages, holds) of n reports from all aggregators' verifier shares (leader).

    `shares` is one byte string an aggregator, in their order, of n x `Prio3.verifier_share_size`. `messages` is n x 32:
    the joint-randomness seed, zeros where the proof does not hold; `holds` is n bytes of 0 or 1. A share that is not
    canonical does not hold. `prefer` as for `new_batch_verifier`. Raises UsageError unless there is one string an
    aggregator, all of one whole length.
    """
    size = prio3.verifier_share_size
    if len(shares) != prio3.shares:
        raise UsageError(f"there are verifier shares of {len(shares)} aggregators, not of {prio3.shares}")
    lengths = {len(column) for column in shares}
    if len(lengths) != 1 or max(lengths) % size:
        raise UsageError(f"the verifier shares have {sorted(lengths)} bytes, not one multiple of {size}")
    if prefer in ("scalar", "arrays") or (prefer == "auto" and not _kernel_combines(prio3)):
        return combine_one_by_one(prio3, ctx, shares)
    from fleetcount_kernel.verifier import combine_batch

    return combine_batch(prio3, ctx, shares)

"""Verification of eight reports at a time in compiled code, behind the seam of `fleetcount_aggregator.proofs`.

Numba and LLVM are known here and nowhere else. How it is built, from the bottom: `lanes` (the vector), `compiling`,
`sponge` and `field64`, `power_sums`, `plan`, `shares` and `queries`, `verifying`, `verifier`.
"""

"""Verification of eight reports at a time in compiled code, behind the seam of `fleetcount_kernel.proofs`.

Numba and LLVM are known here and nowhere else. How it is built, from the bottom: `compiling`, `lanes` (the vector),
`sponge` and `field64`, `block_sums`, `power_sums`, `plan`, `shares` and `queries`, `verifying`, `verifier`.
"""

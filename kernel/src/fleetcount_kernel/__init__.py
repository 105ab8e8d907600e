"""Verification of eight reports at a time in compiled code, behind the seam of `fleetcount_kernel.proofs`.

No other package imports Numba or LLVM, but for one file of the simulator. The modules, from the bottom: `compiling`,
`lanes` (the vector), `sponge` and `field64`, `block_sums`, `power_sums`, `plan`, `shares` and `queries`, `verifying`,
`verifier`.
"""

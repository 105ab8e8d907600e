"""Verification of eight reports at a time in compiled code, behind the interface of `fleetcount_kernel.proofs`.

Apart from one file of the simulator, no other package imports Numba or LLVM. The modules, from the bottom: `compiling`,
`simd` (the vector), `sponge` and `field64`, `block_sums`, `power_sums`, `plan`, `derivations`, `shares` and `queries`,
`verifying`, `verifier`.
"""

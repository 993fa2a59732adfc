"""Liger-Kernel's silu(gate) * up."""

from liger_kernel.transformers.functional import liger_swiglu


def run(gate, up):
    return liger_swiglu(gate, up)

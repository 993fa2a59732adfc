"""Liger-Kernel's addition of the residual fused with RMS normalisation."""

from liger_kernel.transformers.functional import liger_fused_add_rms_norm


def run(x, residual, weight):
    return liger_fused_add_rms_norm(x, residual, weight, 1e-6, 0.0, "gemma", False)

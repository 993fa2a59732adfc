"""FlashInfer's addition of the residual fused with RMS normalisation, which works in place: it gets copies."""

import flashinfer


def run(x, residual, weight):
    output, new_residual = x.clone(), residual.clone()
    flashinfer.norm.fused_add_rmsnorm(output, new_residual, weight, 1e-6)
    return output, new_residual

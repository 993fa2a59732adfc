"""FlashInfer's RMS normalisation of rows."""

import flashinfer


def run(x, weight):
    return flashinfer.norm.gemma_rmsnorm(x.flatten(0, 1), weight, 1e-6).view_as(x)

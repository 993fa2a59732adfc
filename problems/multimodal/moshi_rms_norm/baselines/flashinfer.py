"""FlashInfer's RMS normalisation of rows."""

import flashinfer


def run(x, weight):
    return flashinfer.norm.rmsnorm(x.flatten(0, 1), weight, 1e-8).view_as(x)

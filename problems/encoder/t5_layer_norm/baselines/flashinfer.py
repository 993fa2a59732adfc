"""FlashInfer's RMS normalisation of rows."""

import flashinfer


def run(hidden_states, weight):
    return flashinfer.norm.rmsnorm(hidden_states.flatten(0, 1), weight, 1e-6).view_as(hidden_states)

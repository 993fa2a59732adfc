"""FlashInfer's rotary embedding with Llama 3.1's frequencies."""

import flashinfer


def run(q, k, positions):
    return flashinfer.rope.apply_llama31_rope_pos_ids(
        q,
        k,
        positions,
        interleave=False,
        rope_scale=8.0,
        rope_theta=500000.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        old_context_len=8192,
    )

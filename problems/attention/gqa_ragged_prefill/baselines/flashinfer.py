"""FlashInfer's prefill of sequences without padding. Its plan depends on the lengths, so that each call plans."""

import functools
import math

import flashinfer
import torch


@functools.cache
def prefill(device):
    workspace = torch.empty(128 << 20, dtype=torch.uint8, device=device)
    return flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")


def run(q, k, v, cu_seqlens):
    wrapper = prefill(q.device)
    wrapper.plan(
        cu_seqlens,
        cu_seqlens,
        q.shape[1],
        k.shape[1],
        q.shape[2],
        causal=True,
        q_data_type=q.dtype,
        kv_data_type=k.dtype,
    )
    output, log_sum = wrapper.run(q, k, v, return_lse=True)
    return output, log_sum * math.log(2.0)

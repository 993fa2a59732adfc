"""FlashInfer's decoding over a paged cache. Its plan depends on the lengths, so that each call plans."""

import functools
import math

import flashinfer
import torch


@functools.cache
def decoder(device):
    workspace = torch.empty(128 << 20, dtype=torch.uint8, device=device)
    return flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)


def run(q, k_cache, v_cache, kv_indptr, kv_indices, last_page_len):
    page_size, kv_heads, dim = k_cache.shape[1:]
    wrapper = decoder(q.device)
    wrapper.plan(
        kv_indptr,
        kv_indices,
        last_page_len,
        q.shape[1],
        kv_heads,
        dim,
        page_size,
        q_data_type=q.dtype,
        kv_data_type=k_cache.dtype,
    )
    output, log_sum = wrapper.run(q, (k_cache, v_cache), return_lse=True)
    return output, log_sum * math.log(2.0)

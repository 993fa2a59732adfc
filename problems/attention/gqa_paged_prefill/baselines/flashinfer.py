"""FlashInfer's prefill over a paged cache. Its plan depends on the lengths, so that each call plans."""

import functools

import flashinfer
import torch


@functools.cache
def prefill(device):
    workspace = torch.empty(128 << 20, dtype=torch.uint8, device=device)
    return flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")


def page_lists(page_table, kv_lengths, page_size):
    """The table as lists: where each sequence's begins, the pages, and the tokens in the last of each."""
    counts = (kv_lengths + page_size - 1) // page_size
    used = torch.arange(page_table.shape[1], device=page_table.device) < counts[:, None]
    begins = torch.cat((torch.zeros_like(counts[:1]), counts.cumsum(0))).to(torch.int32)
    return begins, page_table[used], kv_lengths - (counts - 1) * page_size


def run(q, k_cache, v_cache, page_table, kv_lengths):
    page_size, kv_heads, dim = k_cache.shape[1:]
    batch = page_table.shape[0]
    chunk = q.shape[0] // batch
    wrapper = prefill(q.device)
    wrapper.plan(
        torch.arange(batch + 1, dtype=torch.int32, device=q.device) * chunk,
        *page_lists(page_table, kv_lengths, page_size),
        q.shape[1],
        kv_heads,
        dim,
        page_size,
        causal=True,
        q_data_type=q.dtype,
        kv_data_type=k_cache.dtype,
    )
    return wrapper.run(q, (k_cache, v_cache))

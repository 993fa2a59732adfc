"""PyTorch's scaled_dot_product_attention for each sequence, with the rotated channels repeated for all heads."""

import torch
import torch.nn.functional as F


def run(q, k_nope, k_rope, v, cu_seqlens):
    heads = q.shape[1]
    keys = torch.cat((k_nope, k_rope[:, None].expand(-1, heads, -1)), dim=-1)
    output = torch.empty_like(v)
    bounds = cu_seqlens.tolist()
    for begin, end in zip(bounds, bounds[1:]):
        queries, own_keys, values = (part[begin:end].transpose(0, 1)[None] for part in (q, keys, v))
        attended = F.scaled_dot_product_attention(queries, own_keys, values, is_causal=True)
        output[begin:end] = attended[0].transpose(0, 1)
    return output

import torch


def run(q, k_cache, v_cache, page_table, kv_lengths):
    page = k_cache.shape[1]
    table = page_table.long()
    k = k_cache[table].flatten(1, 2).transpose(1, 2)
    v = v_cache[table].flatten(1, 2).transpose(1, 2)
    seen = torch.arange(table.shape[1] * page, device=q.device)[None, :] < kv_lengths[:, None]
    out = torch.nn.functional.scaled_dot_product_attention(
        q.unsqueeze(2), k, v, attn_mask=seen[:, None, None, :], enable_gqa=True
    )
    return out.squeeze(2)

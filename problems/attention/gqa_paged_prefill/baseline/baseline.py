import torch


def run(q, k_cache, v_cache, page_table, kv_lengths):
    tokens, heads, dim = q.shape
    batch, page = page_table.shape[0], k_cache.shape[1]
    table = page_table.long()
    k = k_cache[table].flatten(1, 2).transpose(1, 2)
    v = v_cache[table].flatten(1, 2).transpose(1, 2)
    chunk = tokens // batch
    at = kv_lengths[:, None].long() - chunk + torch.arange(chunk, device=q.device)[None, :]
    seen = torch.arange(k.shape[2], device=q.device)[None, None, :] <= at[:, :, None]
    mine = q.view(batch, chunk, heads, dim).transpose(1, 2)
    out = torch.nn.functional.scaled_dot_product_attention(mine, k, v, attn_mask=seen[:, None], enable_gqa=True)
    return out.transpose(1, 2).reshape(tokens, heads, dim)

"""Liger-Kernel's rotary embedding, which writes to its queries and keys: it gets copies."""

import torch
from liger_kernel.transformers.functional import liger_rope


def run(q, k, cos, sin):
    # Heads before tokens, as views: the kernel's own layout has tokens first.
    queries, keys = q.clone().transpose(0, 1).unsqueeze(0), k.clone().transpose(0, 1).unsqueeze(0)
    cosine, sine = torch.cat((cos, cos), dim=-1).unsqueeze(0), torch.cat((sin, sin), dim=-1).unsqueeze(0)
    queries, keys = liger_rope(queries, keys, cosine, sine)
    return queries[0].transpose(0, 1), keys[0].transpose(0, 1)

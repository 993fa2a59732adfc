import torch
import torch.nn.functional as F


def run(x, residual, norm_weight, gate_up_weight, down_weight):
    total = x + residual
    normed = F.rms_norm(total, (total.shape[-1],), norm_weight, eps=1e-5)
    gate, up = F.linear(normed, gate_up_weight).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, down_weight), total

import torch
import torch.nn.functional as F


def run(x, shift, scale, gate, qkv_weight, qkv_bias, proj_weight, proj_bias):
    batch, tokens, hidden = x.shape
    normed = F.layer_norm(x, (hidden,), eps=1e-6)
    modulated = torch.addcmul(shift.unsqueeze(1), normed, scale.unsqueeze(1) + 1)
    qkv = F.linear(modulated, qkv_weight, qkv_bias)
    q, k, v = qkv.view(batch, tokens, 3, 16, hidden // 16).permute(2, 0, 3, 1, 4)
    merged = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, hidden)
    return torch.addcmul(x, gate.unsqueeze(1), F.linear(merged, proj_weight, proj_bias))

import torch


def run(router_logits):
    values, ids = torch.topk(router_logits, 8, dim=-1)
    weights = torch.softmax(values, dim=-1)
    counts = torch.zeros(router_logits.shape[1], dtype=torch.int32, device=router_logits.device)
    flat = ids.flatten()
    counts.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))
    return weights, ids.to(torch.int32), counts

"""PyTorch's softmax and FlashInfer's renormalisation of the 50 largest."""

import flashinfer
import torch


def run(logits):
    return flashinfer.sampling.top_k_renorm_probs(torch.softmax(logits, dim=-1), 50)

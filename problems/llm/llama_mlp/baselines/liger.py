"""PyTorch's products and Liger-Kernel's SwiGLU between them."""

import torch.nn.functional as F
from liger_kernel.transformers.functional import liger_swiglu


def run(x, gate_proj_weight, up_proj_weight, down_proj_weight):
    activated = liger_swiglu(F.linear(x, gate_proj_weight), F.linear(x, up_proj_weight))
    return F.linear(activated, down_proj_weight)

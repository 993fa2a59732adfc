"""PyTorch's choice of backends, which some variants of a reference narrow for the whole process."""

from __future__ import annotations

import torch

_ATTENTION = ("flash", "mem_efficient", "math", "cudnn")
_BY_VARIANT = {"sdpa_math": "math", "sdpa_flash": "flash", "sdpa_efficient": "mem_efficient", "sdpa_cudnn": "cudnn"}


class TorchBackends:
    """Chooses the backends of a variant, and those that PyTorch had at the start for all others.

    They are set once for each workload and not around each call, whose time would count. One process runs one variant
    at a time.
    """

    def __init__(self) -> None:
        cuda = torch.backends.cuda
        self._enabled = {name: bool(getattr(cuda, f"{name}_sdp_enabled")()) for name in _ATTENTION}
        self._products = cuda.preferred_blas_library()
        self._prefers_cublaslt = False

    def use(self, variant: str) -> None:
        """Choose the backends of a variant. A call that no enabled backend can compute raises."""
        cuda = torch.backends.cuda
        only = _BY_VARIANT.get(variant)
        for name, enabled in self._enabled.items():
            getattr(cuda, f"enable_{name}_sdp")(enabled if only is None else name == only)
        prefers = variant == "cublaslt"
        if prefers != self._prefers_cublaslt:  # a build of PyTorch without cuBLASLt refuses it
            cuda.preferred_blas_library("cublaslt" if prefers else self._products)
            self._prefers_cublaslt = prefers

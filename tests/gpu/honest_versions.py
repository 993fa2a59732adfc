"""Honest versions that attacks are compared with: the same kernel in the same language."""

from __future__ import annotations

from tests.gpu.attack_kernels import CUPY
from tests.gpu.attack_making import TRITON_SOURCE
from tests.gpu.attacks_order import MEANS
from tests.gpu.cases import HONEST, Attack

HONEST_VERSIONS = {
    **HONEST,
    "norm_triton": Attack("honest_norm_triton", TRITON_SOURCE + "run = honest\n", language="triton", problem="norm"),
    "norm_cupy": Attack("honest_norm_cupy", CUPY + "run = launch\n", problem="norm"),
    "mean_triton": Attack("honest_mean_triton", MEANS + "run = honest\n", language="triton", problem="mean"),
}
"""`Attack.version` -> honest version."""

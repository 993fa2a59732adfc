"""Determine a kernel's bottleneck from its counters, and describe it in a sentence.

The thresholds are those of Nsight Compute's own speed-of-light rule: a unit above 80 % of its peak is the limit, and a
kernel whose units are all below 60 % is limited by latency.
"""

from __future__ import annotations

from harness.model.counters import Bottleneck, KernelCounters

_AT_PEAK, _BUSY = 0.8, 0.6
_FEW_WAVES = 1.0
_LOW_OCCUPANCY = 0.5
_HINTS = {
    "long scoreboard": "loads from global memory: keep more in flight per thread, or prefetch",
    "short scoreboard": "shared memory: fewer bank conflicts, wider accesses",
    "mio throttle": "the queue of shared memory and special functions: fewer and wider shared-memory instructions",
    "lg throttle": "the queue of global memory instructions: fewer and wider loads and stores",
    "barrier": "other warps of the block: shorter phases between barriers, or smaller blocks",
    "math pipe throttle": "a busy arithmetic unit: fewer instructions",
    "wait": "fixed latencies of instructions: more independent work per thread",
    "gmma": "warp-group products: a deeper pipeline of asynchronous products",
    "membar": "memory fences: fewer of them",
    "no instruction": "instructions: a smaller loop body",
    "drain": "stores at the end of the kernel",
    "imc miss": "constant memory",
    "branch resolving": "branches",
    "sleeping": "sleeping threads of the kernel's own",
    "tex throttle": "the queue of texture instructions",
    "dispatch stall": "the dispatcher",
}
"""Stall reason -> resource that the warps wait for, and a remedy."""
_FEWER_BYTES = "only fewer bytes through it help (reuse in registers, wider accesses, fewer bank conflicts)"
_REMEDIES: dict[Bottleneck, str] = {
    "tensor cores": "only fewer or narrower products help",
    "memory bandwidth": "only fewer bytes help (fusion, narrower types, no second read)",
    "arithmetic": "only fewer instructions help, or tensor cores where products can use them",
    "L2": _FEWER_BYTES,
    "shared memory and L1": _FEWER_BYTES,
}
"""Unit at its peak -> remedy."""


def with_bottleneck(counters: KernelCounters) -> KernelCounters:
    """Return the counters with the bottleneck and its sentence."""
    bottleneck, sentence = _bottleneck(counters)
    return counters.model_copy(update={"bottleneck": bottleneck, "sentence": sentence})


def _bottleneck(counters: KernelCounters) -> tuple[Bottleneck | None, str]:
    units = _units(counters)
    if not units:
        return None, "the counters that name a bottleneck are missing on this GPU"
    at_peak = [unit for unit, share in units.items() if share >= _AT_PEAK]
    unit = at_peak[0] if at_peak else max(units, key=lambda name: units[name])
    share = units[unit]
    if at_peak:
        return unit, f"{unit} is the limit, at {share:.0%} of its peak: {_REMEDIES[unit]}"
    if share < _BUSY and counters.waves is not None and counters.waves < _FEW_WAVES:
        return "too few blocks", (
            f"too few blocks: the launch has {counters.waves:.2f} waves of blocks, so multiprocessors stay idle: split "
            "the work into more blocks (smaller tiles, split-K)"
        )
    if share < _BUSY:
        return "latency", f"latency is the limit: no unit is above {share:.0%} of its peak{_waits(counters)}"
    return unit, f"{unit} is the busiest unit, at {share:.0%} of its peak{_waits(counters)}"


def _units(counters: KernelCounters) -> dict[Bottleneck, float]:
    """Return the share of its peak of each measured unit, by priority among units at their peak."""
    shares: dict[Bottleneck, float | None] = {
        "tensor cores": counters.tensor_share,
        "memory bandwidth": counters.dram_share,
        "arithmetic": counters.compute_share,
        "L2": counters.l2_share,
        "shared memory and L1": counters.l1_share,
    }
    measured = {unit: share for unit, share in shares.items() if share is not None}
    tensor, compute = measured.get("tensor cores"), measured.get("arithmetic")
    if tensor is not None and compute is not None and compute <= tensor + 0.1:
        # The throughput of a multiprocessor is that of its busiest unit, here the tensor cores.
        del measured["arithmetic"]
    return measured


def _waits(counters: KernelCounters) -> str:
    parts = ""
    if counters.stalls:
        first = counters.stalls[0]
        wait = _HINTS.get(first.reason, first.reason)
        parts += f"; warps spend {first.share:.0%} of their time waiting for {wait}"
    if counters.occupancy is not None and counters.occupancy < _LOW_OCCUPANCY and counters.occupancy_limits:
        limits = " and ".join(counters.occupancy_limits)
        parts += f"; occupancy is {counters.occupancy:.0%}, limited by {limits}"
    return parts

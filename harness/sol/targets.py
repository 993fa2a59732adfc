"""The hardware figures of a target: from the table of GPUs, or measured on this host."""

from __future__ import annotations

from pathlib import Path

from harness.errors import ConfigurationError
from harness.sol.cpu import measured_cpu
from harness.sol.hardware import CPU, Hardware, table
from harness.sol.measured_gpu import hardware_directory, hardware_of, kept_rates, kept_targets

MEASURE = "harness hardware measure    # on a host with such a GPU: once, a minute"


def hardware(target: str, *, cache_dir: Path | None = None, measured_dir: Path | None = None) -> Hardware:
    """Return the figures of a target.

    Args:
        target: `h200`, `b200` ... of the table; `cpu`, which is measured on this host; or a GPU that was measured here.
        cache_dir: where the measurement of the CPU is kept; only `cpu` needs it.
        measured_dir: where measurements of GPUs are kept; by default the user's cache.

    Raises:
        ConfigurationError: the target is neither in the table nor measured, or the CPU cannot be measured.
    """
    if target == CPU:
        if cache_dir is None:
            raise ConfigurationError(
                "the target `cpu` is measured, and there is no directory to keep the measurement in"
            )
        return measured_cpu(cache_dir)
    listed = table().get(target)
    if listed is not None:
        return listed
    directory = measured_dir or hardware_directory()
    rates = kept_rates(target, directory)
    if rates is None:
        known = ", ".join([CPU, *sorted(table()), *kept_targets(directory)])
        raise ConfigurationError(
            f"no bound: the rates of the target `{target}` are neither listed nor measured on this host "
            f"(known: {known})",
            remedy=MEASURE,
        )
    return hardware_of(rates)

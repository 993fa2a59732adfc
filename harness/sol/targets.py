"""Hardware figures of a target: from the table of GPUs, or measured on this host."""

from __future__ import annotations

from pathlib import Path

from harness.errors import ConfigurationError
from harness.sol.cpu import measured_cpu
from harness.sol.hardware import CPU, Hardware, table
from harness.sol.measured_gpu import hardware_directory, hardware_of, stored_rates, stored_targets

MEASURE = "harness hardware measure    # on a host with such a GPU: once, a minute"


def hardware(target: str, *, cache_dir: Path | None = None, measured_dir: Path | None = None) -> Hardware:
    """Return the hardware figures of a target.

    Args:
        target: a GPU of the table, such as `h200`; `cpu`, which is measured here; or a GPU that was measured here.
        cache_dir: directory of the measurement of the CPU, needed for `cpu` only.
        measured_dir: directory of the measurements of GPUs; by default the user's cache.

    Raises:
        ConfigurationError: the target is neither in the table nor measured, or the CPU cannot be measured.
    """
    if target == CPU:
        if cache_dir is None:
            raise ConfigurationError("the target `cpu` is measured, and there is no directory for the measurement")
        return measured_cpu(cache_dir)
    listed = table().get(target)
    if listed is not None:
        return listed
    directory = measured_dir or hardware_directory()
    rates = stored_rates(target, directory)
    if rates is None:
        known_targets = ", ".join([CPU, *sorted(table()), *stored_targets(directory)])
        raise ConfigurationError(
            f"the rates of the target `{target}` are neither listed nor measured on this host (known: {known_targets})",
            remedy=MEASURE,
        )
    return hardware_of(rates)

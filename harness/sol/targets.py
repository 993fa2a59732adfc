"""The hardware figures of a target: read from the table of GPUs, or measured for the CPU of this host."""

from __future__ import annotations

from pathlib import Path

from harness.errors import ConfigurationError
from harness.sol.cpu import measured_cpu
from harness.sol.hardware import CPU, Hardware, table


def hardware(target: str, *, cache_dir: Path | None = None) -> Hardware:
    """The figures of a target: `h200`, `b200` ...; `cpu` is measured on this host, and needs `cache_dir`.

    Raises:
        ConfigurationError: no such target in the table.
    """
    if target == CPU:
        if cache_dir is None:
            raise ConfigurationError(
                "the target `cpu` is measured, and there is no directory to keep the measurement in"
            )
        return measured_cpu(cache_dir)
    found = table().get(target)
    if found is None:
        known = ", ".join([CPU, *sorted(table())])
        raise ConfigurationError(
            f"no figures for the target `{target}`; there are: {known}",
            remedy="add its datasheet figures, with their sources, to harness/sol/hardware.yaml",
        )
    return found

"""Run operators of torch with a limit of device memory: tensors that are not in use are moved to host memory.

The results are bit-identical to those without a limit. Memory is freed and restored as a whole storage, so that views
remain valid.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from harness.sol.arguments import Untyped, is_composite, is_view, tensors_in
from harness.sol.tensor_values import bytes_of_new_results

_Storages = dict[int, torch.UntypedStorage]
_DIRECT_READS = frozenset(
    {"numpy", "tolist", "data_ptr", "untyped_storage", "storage", "__array__", "__dlpack__", "to_dlpack"}
)
"""Functions of torch that return or read the memory of a tensor without an operator."""


@dataclass
class _TrackedStorage:
    storage: weakref.ref[torch.UntypedStorage]
    bytes: int
    host: torch.Tensor | None = None
    """Content while the storage has no device memory."""


class MemoryBudget(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Limits the device memory of the storages that operators create.

    Before an operator runs, the least recently used storages of others are moved to host memory until its results fit.
    Storages that existed before, such as a caller's inputs, are neither counted nor moved.

    Args:
        budget_bytes: limit of the bytes that are alive at a time. An operator whose own operands and results are
            larger exceeds it.
        device: only storages of this type of device are counted.
    """

    def __init__(self, budget_bytes: int, device: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._budget_bytes = budget_bytes
        self._device = device
        self._resident: OrderedDict[int, _TrackedStorage] = OrderedDict()
        """Storages with device memory by identity, the least recently used first."""
        self._spilled: dict[int, _TrackedStorage] = {}
        self.live_bytes = 0
        """Device memory of the tracked storages."""
        self.peak_bytes = 0
        self.spilled_bytes = 0
        """Bytes that were moved to host memory, in total."""

    def __torch_dispatch__(self, func: Untyped, types: Untyped, args: Untyped = (), kwargs: Untyped = None) -> Untyped:
        kwargs = kwargs or {}
        if is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        with torch._C.DisableTorchFunction():  # noqa: SLF001 - `_DirectReads` must not see what this class reads
            return self._run_within_budget(func, args, kwargs)

    def _run_within_budget(self, func: Untyped, args: Untyped, kwargs: Untyped) -> Untyped:
        operands = self._storages_of(tensors_in(args, kwargs))
        self._bring(operands, 0 if is_view(func) else bytes_of_new_results(func, args, kwargs))
        out = self._run(func, args, kwargs, operands)
        results = self._storages_of(tensors_in(out))
        for identity, storage in operands.items():
            self._update_size(identity, storage)
        for identity, storage in results.items():
            if identity not in operands and identity not in self._resident and storage.resizable():
                self._track(identity, storage)
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        # Results are larger than expected where their size depends on values.
        self._make_room(0, operands.keys() | results.keys())
        return out

    def pin(self, tensors: Sequence[torch.Tensor]) -> None:
        """Restore tensors whose memory is about to be read directly, and do not move them again."""
        storages = self._storages_of(tensors)
        with _disable_current_modes():
            self._bring(storages, 0)
        for identity in storages:
            self._forget(identity)

    def close(self) -> None:
        """Restore all storages that are still alive, and track none."""
        try:
            for identity in list(self._spilled):
                self._restore(identity)
        finally:
            self._resident.clear()
            self._spilled.clear()
            self.live_bytes = 0

    def _run(self, func: Untyped, args: Untyped, kwargs: Untyped, operands: _Storages) -> Untyped:
        """Run an operator; if memory is exhausted, once more with everything else in host memory."""
        try:
            return func(*args, **kwargs)
        except torch.OutOfMemoryError:
            if func._schema.is_mutable:  # noqa: SLF001 - torch offers nothing else
                raise  # its operand may be changed in part
        self._make_room(self._budget_bytes, operands.keys())
        if self._device == "cuda":
            torch.cuda.empty_cache()
        return func(*args, **kwargs)

    def _storages_of(self, tensors: Sequence[torch.Tensor]) -> _Storages:
        """Return the storages of tensors on the device by identity."""
        storages: _Storages = {}
        for tensor in tensors:
            if tensor.device.type == self._device and tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                storages[storage._cdata] = storage  # noqa: SLF001 - torch offers nothing else
        return storages

    def _bring(self, operands: _Storages, new_bytes: int) -> None:
        """Make room for operands and new bytes, and restore the operands."""
        absent = [identity for identity in operands if identity in self._spilled]
        room_bytes = new_bytes + sum(self._spilled[identity].bytes for identity in absent)
        for identity in operands:
            if identity in self._resident:
                self._resident.move_to_end(identity)
        self._make_room(room_bytes, operands.keys())
        for identity in absent:
            self._restore(identity)

    def _make_room(self, room_bytes: int, used: Untyped) -> None:
        """Move storages that are not in use to host memory until this number of bytes fits."""
        if self.live_bytes + room_bytes <= self._budget_bytes:
            return
        for identity in [identity for identity in self._resident if identity not in used]:
            self._spill(identity)
            if self.live_bytes + room_bytes <= self._budget_bytes:
                return

    def _spill(self, identity: int) -> None:
        tracked = self._resident.get(identity)
        storage = tracked.storage() if tracked is not None else None
        if tracked is None or storage is None:
            return  # the garbage collector may run at any time
        # NumPy asks for huge pages: the page faults of gigabytes of small pages take longer than the copy.
        tracked.host = torch.from_numpy(np.empty(tracked.bytes, dtype=np.uint8)).copy_(_bytes_of(storage))
        storage.resize_(0)
        self._spilled[identity] = self._resident.pop(identity)
        self.live_bytes -= tracked.bytes
        self.spilled_bytes += tracked.bytes

    def _restore(self, identity: int) -> None:
        tracked = self._spilled.get(identity)
        storage = tracked.storage() if tracked is not None else None
        if tracked is None or storage is None or tracked.host is None:
            return
        storage.resize_(tracked.bytes)
        _bytes_of(storage).copy_(tracked.host)
        tracked.host = None
        self._resident[identity] = self._spilled.pop(identity)
        self.live_bytes += tracked.bytes

    def _track(self, identity: int, storage: torch.UntypedStorage) -> None:
        if storage.nbytes() == 0:
            return
        died = weakref.ref(storage, lambda _: self._forget(identity))
        self._resident[identity] = _TrackedStorage(died, storage.nbytes())
        self.live_bytes += storage.nbytes()

    def _forget(self, identity: int) -> None:
        """Stop tracking a storage."""
        self._spilled.pop(identity, None)
        tracked = self._resident.pop(identity, None)
        if tracked is not None:
            self.live_bytes -= tracked.bytes

    def _update_size(self, identity: int, storage: torch.UntypedStorage) -> None:
        """Count the bytes of an operand again, because an operator may resize it."""
        tracked = self._resident.get(identity)
        if tracked is not None:
            self.live_bytes += storage.nbytes() - tracked.bytes
            tracked.bytes = storage.nbytes()


class _DirectReads(TorchFunctionMode):
    """Pins tensors whose memory is read without an operator."""

    def __init__(self, budget: MemoryBudget) -> None:
        super().__init__()
        self._budget = budget

    def __torch_function__(
        self,
        func: Untyped,
        types: Untyped,
        args: Sequence[Untyped] = (),
        kwargs: Mapping[str, Untyped] | None = None,
    ) -> Untyped:
        if getattr(func, "__name__", "") in _DIRECT_READS:
            self._budget.pin(tensors_in(args))
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def memory_budget(budget_bytes: int, device: str) -> Iterator[MemoryBudget]:
    """Limit the device memory of what operators create inside this context; at its end all tensors are on the device.

    Args:
        budget_bytes: as of `MemoryBudget`.
        device: type of the device, such as "cuda".

    Raises:
        torch.OutOfMemoryError: the operands and results of one operator, or the remaining tensors, exceed the device.
    """
    budget = MemoryBudget(budget_bytes, device)
    try:
        with budget, _DirectReads(budget):
            yield budget
    finally:
        budget.close()


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)

"""Attacks on files outside the sandbox, on other processes' memory, and on the record of launches."""

from __future__ import annotations

from tests.gpu.attack_making import python, triton
from tests.judge.attacks.cases import ESCAPE

REACH = (
    python(
        "file_outside_the_sandbox_read",
        """
def escape():
    return "business" in open("@SECRET@").read()
"""
        + ESCAPE,
    ),
    python(
        "memory_of_another_process_read",
        """
import ctypes, os

class Part(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("size", ctypes.c_size_t)]

def escape():
    pid = os.getppid()
    with open(f"/proc/{pid}/maps") as maps:
        begin = int(next(line for line in maps if "[stack]" in line).split("-")[0], 16)
    held = ctypes.create_string_buffer(4096)
    here, there = Part(ctypes.addressof(held), 4096), Part(begin, 4096)
    libc = ctypes.CDLL(None)
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    return libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) == 4096
"""
        + ESCAPE,
    ),
)

FORGED_RECORD = triton(
    "record_of_fewer_blocks",
    """
from runner import recording

usual = recording.LaunchRecorder.record
def record(self):
    for step in self._steps:
        if step["kind"] == "launch":
            step["grid"] = [step["grid"][0] // 8, 1, 1]
    return usual(self)
recording.LaunchRecorder.record = record
run = honest
""",
    off=("outputs",),
    replay_refused=True,
)

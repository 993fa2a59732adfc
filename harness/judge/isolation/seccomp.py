"""System calls that sandboxed code may not make, as a BPF program for `bwrap --seccomp`.

This deny-list adds to bubblewrap's namespaces and dropped capabilities. Denied calls return EPERM. It protects what the
clock and the stop rely on, against candidates that could otherwise
- avoid a stop by a change of their processor, priority or scheduler;
- have outputs written while they are stopped, by work queued in the kernel (io_uring, aio);
- access pid 1 of their sandbox, by tracing it or by reading or writing its memory;
- be continued while they are stopped, by a signal that the kernel sends later (a POSIX timer, a message queue, an
  asynchronous descriptor);
- run on other memory than the other side, by a request for huge pages or by replacing pages of their outputs.
The other calls of the list are not needed by any candidate.

Constants: linux/seccomp.h, linux/bpf_common.h, linux/audit.h; call numbers from arch/x86/entry/syscalls and
include/uapi/asm-generic/unistd.h.
"""

from __future__ import annotations

import os
import platform
import struct

from harness.errors import ConfigurationError

_LOAD, _JUMP_EQ, _JUMP_GE, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_NR, _ARCH, _ARG0, _ARG1, _ARG2 = 0, 4, 16, 24, 32  # offsets in struct seccomp_data; low halves of the arguments
_NEW_NAMESPACE = 0x7E020080
"""CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET,TIME}: clone with any of these is refused."""
_X32 = 0x40000000

_SHARED = {  # numbers above 423 are the same on every architecture
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438, "process_madvise": 440,
    "mount_setattr": 442, "quotactl_fd": 443, "memfd_secret": 447, "process_mrelease": 448, "cachestat": 451,
}  # fmt: skip
_CLONE3 = 435
_DENIED = {
    "x86_64": {
        "ptrace": 101, "syslog": 103, "personality": 135, "setpriority": 141, "sched_setparam": 142,
        "sched_setscheduler": 144, "modify_ldt": 154, "pivot_root": 155, "adjtimex": 159, "chroot": 161, "acct": 163,
        "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169, "iopl": 172,
        "ioperm": 173, "init_module": 175, "delete_module": 176, "quotactl": 179, "sched_setaffinity": 203,
        "io_setup": 206, "io_destroy": 207, "io_getevents": 208, "io_submit": 209, "io_cancel": 210,
        "clock_settime": 227, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "ioprio_set": 251,
        "migrate_pages": 256, "unshare": 272, "vmsplice": 278, "move_pages": 279, "perf_event_open": 298,
        "name_to_handle_at": 303, "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308,
        "timer_create": 222, "mq_notify": 244,
        "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "sched_setattr": 314,
        "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323, "io_pgetevents": 333,
    },
    "aarch64": {
        "timer_create": 107, "mq_notify": 184,
        "io_setup": 0, "io_destroy": 1, "io_submit": 2, "io_cancel": 3, "io_getevents": 4, "ioprio_set": 30,
        "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "quotactl": 60, "vmsplice": 75, "acct": 89,
        "personality": 92, "unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106,
        "clock_settime": 112, "syslog": 116, "ptrace": 117, "sched_setparam": 118, "sched_setscheduler": 119,
        "sched_setaffinity": 122, "setpriority": 140, "reboot": 142, "settimeofday": 170, "adjtimex": 171,
        "add_key": 217, "request_key": 218, "keyctl": 219, "swapon": 224, "swapoff": 225, "migrate_pages": 238,
        "move_pages": 239, "perf_event_open": 241, "name_to_handle_at": 264, "open_by_handle_at": 265,
        "clock_adjtime": 266, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272,
        "finit_module": 273, "sched_setattr": 274, "bpf": 280, "userfaultfd": 282, "io_pgetevents": 292,
        "kexec_file_load": 294,
    },
}  # fmt: skip
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE = {"x86_64": 56, "aarch64": 220}
_FCNTL = {"x86_64": 72, "aarch64": 25}
_SIGNALS_BY_DESCRIPTOR = (8, 10, 15)
"""fcntl's F_SETOWN, F_SETSIG and F_SETOWN_EX, which set the signal of a ready descriptor and its receiver."""
_PRCTL = {"x86_64": 157, "aarch64": 167}
_SCHED_CORE = (62,)
"""prctl's PR_SCHED_CORE, after which a core's other hardware threads run no other process, such as the judge."""
_MADVISE = {"x86_64": 28, "aarch64": 233}
_COLLAPSE = (25,)
_OTHER_PAGES = (9, 14, *_COLLAPSE)
"""madvise's MADV_REMOVE, MADV_HUGEPAGE and MADV_COLLAPSE, which replace pages that the judge chose for both sides."""
_FALLOCATE = {"x86_64": 285, "aarch64": 47}
_MAKES_HOLES = 0xFFFFFFFE
"""fallocate's modes except FALLOC_FL_KEEP_SIZE. Punching, zeroing and collapsing ranges releases pages."""


def _instruction(code: int, k: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, k)


def program(machine: str | None = None, *, shares_pages: bool = True) -> bytes:
    """Return the filter as `struct sock_filter[]`.

    A filter cannot read the flags of `clone3`, so that call returns ENOSYS, and the C library uses `clone` instead.

    Args:
        machine: the architecture; None: this machine's.
        shares_pages: refuse changes of pages, because inputs and outputs may be in memory that the sandbox shares with
            the judge. A GPU's runner has no such memory, and its driver needs these calls.

    Raises:
        ConfigurationError: the architecture is neither x86_64 nor aarch64.
    """
    machine = machine or platform.machine()
    if machine not in _DENIED:
        raise ConfigurationError(
            f"no system-call filter for the architecture {machine}",
            remedy="judge on x86_64 or aarch64",
        )
    denied = sorted({*_DENIED[machine].values(), *_SHARED.values()})
    deny = _instruction(_RETURN, _ERRNO | _EPERM)
    allow = _instruction(_RETURN, _ALLOW)
    code = [
        _instruction(_LOAD, _ARCH),
        _instruction(_JUMP_EQ, _AUDIT_ARCH[machine], 1, 0),
        deny,  # a call by another architecture's numbers
        _instruction(_LOAD, _NR),
        _instruction(_JUMP_GE, _X32, 0, 1),
        deny,
        _instruction(_JUMP_EQ, _CLONE3, 0, 1),
        _instruction(_RETURN, _ERRNO | _ENOSYS),
    ]
    for number in denied:
        code += [_instruction(_JUMP_EQ, number, 0, 1), deny]
    code += _denied_by_argument(_FCNTL[machine], _ARG1, _SIGNALS_BY_DESCRIPTOR)
    code += _denied_by_argument(_PRCTL[machine], _ARG0, _SCHED_CORE)
    code += _denied_by_argument(_MADVISE[machine], _ARG2, _OTHER_PAGES if shares_pages else _COLLAPSE)
    if shares_pages:
        code += [
            _instruction(_JUMP_EQ, _FALLOCATE[machine], 0, 4),
            _instruction(_LOAD, _ARG1),
            _instruction(_JUMP_SET, _MAKES_HOLES, 0, 1),
            deny,
            allow,
        ]
    code += [
        _instruction(_JUMP_EQ, _CLONE[machine], 0, 2),
        _instruction(_LOAD, _ARG0),
        _instruction(_JUMP_SET, _NEW_NAMESPACE, 1, 0),
        allow,
        deny,
    ]
    return b"".join(code)


def _denied_by_argument(number: int, argument: int, values: tuple[int, ...]) -> list[bytes]:
    """Return instructions that refuse a call with one of these values as an argument, and allow it with any other."""
    checks = []
    for value in values:
        checks += [_instruction(_JUMP_EQ, value, 0, 1), _instruction(_RETURN, _ERRNO | _EPERM)]
    checks.append(_instruction(_RETURN, _ALLOW))
    return [_instruction(_JUMP_EQ, number, 0, 1 + len(checks)), _instruction(_LOAD, argument), *checks]


def program_file(*, shares_pages: bool = True) -> int:
    """Return a descriptor that bwrap can read the filter from (see `program`). The caller closes it."""
    descriptor = os.memfd_create("seccomp", 0)
    os.write(descriptor, program(shares_pages=shares_pages))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor

"""Adversaries that aim at a slower baseline: they enqueue work that runs in the baseline's turn."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from .device import i64
from .doorbell import PAGE_BYTES
from .honest import Honest


class BaselineAttack(Honest):
    """Enqueues work that runs in the baseline's turn."""

    delay_s = 0.0006
    """Approximate time from the answer to the start of the baseline's clock."""

    def start(self) -> None:
        self.left = self.gpu.stream()
        self.big = self.gpu.allocate(2 << 30)
        self.host, _ = self.gpu.pinned(32 << 20)
        self.flag, self.flag_words = self.gpu.pinned(64)
        self.prepare()

    def prepare(self) -> None:
        """Start helpers."""

    def spin(self) -> None:
        """Enqueue a kernel that occupies every multiprocessor for 6 ms."""
        self.gpu.launch("spin_ns", (1056,), (i64(6_000_000),), self.left)


class BaseKernel(BaselineAttack):
    """A long kernel."""

    def after(self, placement: int) -> None:
        del placement
        self.spin()


class BaseCopy(BaselineAttack):
    """Copies from the host by copy engine, which a probe on the multiprocessors cannot detect."""

    def after(self, placement: int) -> None:
        del placement
        for _ in range(8):
            self.gpu.copy(self.big, self.host, 32 << 20, self.left)


class BaseDelayed(BaselineAttack):
    """A copy from the host delays a kernel past the probe for idleness."""

    def after(self, placement: int) -> None:
        del placement
        self.gpu.copy(self.big, self.host, 32 << 20, self.left)
        self.spin()


class BaseCallback(BaselineAttack):
    """A host function delays the kernel."""

    def after(self, placement: int) -> None:
        del placement
        self.gpu.call_host(self.left, lambda _: time.sleep(self.delay_s))
        self.spin()


class BaseWait(BaselineAttack):
    """The stream waits for a word that a helper process writes into the doorbell page later."""

    def prepare(self) -> None:
        self.page = self.gpu.register(self.bell.address, PAGE_BYTES)
        words = self.bell.words
        if os.fork() == 0:
            last_ticket, parent = words[64], os.getppid()
            while os.getppid() == parent:
                if words[64] != last_ticket:
                    last_ticket = words[64]
                    time.sleep(self.delay_s)
                    words[65] = last_ticket
            os._exit(0)

    def after(self, placement: int) -> None:
        del placement
        ticket = int(self.bell.words[64]) + 1
        self.gpu.wait_equal(self.left, self.page + 65 * 8, ticket & 0xFFFFFFFF)
        self.spin()
        self.bell.words[64] = ticket


class BaseCpu(BaselineAttack):
    """Helper processes load every core that they may use."""

    def prepare(self) -> None:
        code = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n  for _ in range(10**5): pass"
        self.helpers = [subprocess.Popen([sys.executable, "-S", "-c", code]) for _ in range(32)]

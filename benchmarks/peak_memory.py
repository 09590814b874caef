"""The most memory of a process over a time: what it has allocated, and what of it lies in memory."""

from __future__ import annotations

import ctypes
import threading

INTERVAL = 0.003
"""Seconds between two looks: tensors of megabytes take longer to fill."""
FIELDS = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class PeakMemory:
    """Peaks since it was opened above what there was then, in MB of 10⁶ bytes.

    `allocated` is what malloc has given out and not got back (glibc's `mallinfo2`, all arenas and large blocks):
    tensors and all else that the process holds. `resident` is anonymous memory, without mapped files: also what malloc
    keeps of freed blocks.
    """

    def __enter__(self) -> PeakMemory:
        self.before = self.peak = (allocated(), anonymous())
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()
        return self

    def watch(self) -> None:
        while not self.closed.wait(INTERVAL):
            self.look()

    def look(self) -> None:
        self.peak = max(self.peak[0], allocated()), max(self.peak[1], anonymous())

    def __exit__(self, *_: object) -> None:
        self.closed.set()
        self.thread.join()
        self.look()

    @property
    def allocated(self) -> int:
        return round((self.peak[0] - self.before[0]) / 1e6)

    @property
    def resident(self) -> int:
        return round((self.peak[1] - self.before[1]) / 1e6)


class MallocInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]


def allocated() -> int:
    """Bytes in use, in all arenas and in blocks with a mapping of their own."""
    info = mallinfo2()
    return info.uordblks + info.hblkhd


def anonymous() -> int:
    """Bytes of this process in memory that are no mapped file."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) * 1024


mallinfo2 = ctypes.CDLL(None).mallinfo2  # glibc 2.33 or newer
mallinfo2.restype = MallocInfo

"""What moving and computing costs: the numbers that a layout is chosen by, and that the simulator runs on."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import BadInput


@dataclass(frozen=True)
class Link:
    """The connection between ranks, and how fast a rank computes.

    `latency` is the time of an empty message in seconds, `bandwidth` the bytes a second that a rank can receive,
    `flops` the operations a second of its attention kernels, and `piece` the seconds that each run of consecutive
    tokens costs beside its operations. The last two are properties of the device: they decide how much communication
    is worth for balanced work, and how many small pieces balance is worth.
    """

    name: str
    latency: float
    bandwidth: float
    flops: float
    piece: float = 0.0

    def transfer(self, size: float, messages: int = 1) -> float:
        """Seconds until `size` bytes in so many messages have arrived."""
        return messages * self.latency + size / self.bandwidth

    def compute(self, operations: float) -> float:
        """Seconds for so many multiplications and additions."""
        return operations / self.flops


LINKS = {
    link.name: link
    for link in (
        Link("nvlink", 5e-6, 400e9, 400e12, 10e-6),
        Link("infiniband", 10e-6, 45e9, 400e12, 10e-6),
        Link("ethernet", 30e-6, 11e9, 400e12, 10e-6),
        Link("gloo", 150e-6, 1.5e9, 20e9, 200e-6),
    )
}
"""Links by name: GPUs of one machine, of machines with InfiniBand (400 Gbit/s) or Ethernet (100 Gbit/s), and processes
on one CPU. Nominal figures with the overhead of the libraries taken off; measure your own for exact predictions."""


def find_link(link: Link | str) -> Link:
    """The link of a name; a `Link` is returned as it is."""
    if isinstance(link, Link):
        return link
    if link not in LINKS:
        raise BadInput(f"There is no link {link!r}; choose one of {', '.join(LINKS)}, or pass a distributed.Link(...).")
    return LINKS[link]

"""The cost model of parallel steps: how long a block takes to the devices (DistZO2, appendix C).

Sizes are in bytes, bandwidths in bytes per second, so times in seconds; the paper counts parameters instead. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Links:
    """Bandwidths of a machine: ``link`` between host memory and one device when no other device uses it (B_PCIe);
    ``host``: what the links of all devices come to together, None if each has all of its own at any time;
    ``peers``: what a device receives from the others, all of them at once (B_NVLink), None if it is not known.
    """

    link: float
    host: float | None = None
    peers: float | None = None

    def share(self, ranks: int) -> float:
        """What each of ``ranks`` devices gets of the host's links when all use them."""
        return self.link if self.host is None else min(self.link, self.host / ranks)


def whole_seconds(nbytes: float, ranks: int, links: Links) -> float:
    """Seconds until each of ``ranks`` devices has all ``nbytes`` of a block from the host (figure 3a)."""
    return nbytes / links.share(ranks)


def sliced_seconds(nbytes: float, ranks: int, links: Links) -> float:
    """Seconds until they have it in slices: each brings one from the host, and the others from its peers.

    Equation 3: M / (n B_PCIe) + (n - 1) M / (n B_NVLink). Without a known way between peers that is the host's link,
    which is never faster than whole transfers, as the paper says of machines without NVLink.
    """
    slice_, others = nbytes / ranks, nbytes * (ranks - 1) / ranks
    between = links.share(ranks) if links.peers is None else links.peers
    return slice_ / links.share(ranks) + others / between


def offload_seconds(nbytes: float, ranks: int, links: Links) -> float:
    """Seconds until a block is in host memory again: all devices have the same bytes, and each writes its slice
    (section 6.1). So does an engine that uploads whole blocks, since the ranks of a machine share one copy."""
    return nbytes / ranks / links.share(ranks)

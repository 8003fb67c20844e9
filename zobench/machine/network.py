"""Which of this machine's addresses and network interfaces lead to another machine."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

from zobench.runspec import RunSpec

SIOCGIFADDR = 0x8915
"""Of Linux's ioctl: an interface's IPv4 address."""
IPV6 = Path("/proc/net/if_inet6")
"""Linux's table of IPv6 addresses: the address first, its interface last."""
LIBRARIES = ("GLOO", "NCCL")
"""What the ranks talk through, as the names of its environment variables begin."""


def parse_endpoint(text: str, said: str = "ZOBENCH_RENDEZVOUS") -> tuple[str, int]:
    """(host, port) of HOST:PORT. Raises ``ValueError``; ``said``: what it was given with."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"`{said}` must be HOST:PORT, but got {text!r}; for example 10.0.0.1:29500")
    return host.strip("[]"), int(port)


def endpoint_of(spec: RunSpec, environment: Mapping[str, str]) -> str:
    """Where the machines of ``spec`` meet: ``ZOBENCH_RENDEZVOUS`` (``--rendezvous``), "" for a single machine.

    Raises ``ValueError``.
    """
    endpoint, count = environment.get("ZOBENCH_RENDEZVOUS", ""), environment.get("ZOBENCH_NODE_COUNT", str(spec.nodes))
    if spec.nodes == 1:
        return ""
    if count != str(spec.nodes):
        raise ValueError(f"`nodes={spec.nodes}` must be ZOBENCH_NODE_COUNT, but that is {count}; make them equal")
    if not endpoint:
        raise ValueError(
            f"`nodes={spec.nodes}` needs --rendezvous HOST:PORT on each of them, but got none; name an address of the "
            "first machine and a free port there"
        )
    parse_endpoint(endpoint)
    return endpoint


def address_towards(host: str) -> str:
    """This machine's own address of the connection to ``host``; no packet is sent. Raises ``OSError`` if none leads
    there."""
    family, kind, protocol, _, place = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """The name of the interface with ``address``; None where the system does not say."""
    if sys.platform != "linux":
        return None
    if ":" in address:
        rows = [line.split() for line in IPV6.read_text().splitlines()] if IPV6.exists() else []
        wanted = ipaddress.ip_address(address.partition("%")[0]).packed.hex()
        return next((row[-1] for row in rows if row[0] == wanted), None)
    if address.startswith("127."):  # Debian's own host name is 127.0.1.1, which no interface has
        address = "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # one without an address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def socket_interface(library: str, interface: str) -> tuple[str, str]:
    """The environment variable with which ``library`` listens on that interface alone: (name, value)."""
    exactly = "=" if library == "NCCL" else ""  # else NCCL also takes one whose name goes on
    return f"{library}_SOCKET_IFNAME", exactly + interface

"""Which of this machine's addresses and network interfaces lead to another machine."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping

from zobench.runspec import RunSpec

LIBRARIES = ("GLOO", "NCCL")
"""The libraries that ranks talk through, as the names of their environment variables begin."""


def parse_endpoint(text: str, source: str = "ZOBENCH_RENDEZVOUS") -> tuple[str, int]:
    """(host, port) of HOST:PORT. Raises ``ValueError``; ``source``: what it was given with."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"`{source}` must be HOST:PORT, but got {text!r}; for example 10.0.0.1:29500")
    return host.strip("[]"), int(port)


def meet_at(endpoint: str | None) -> None:
    """Sets ``endpoint`` (HOST:PORT), if given, as where the nodes of a cell meet. Raises ``ValueError`` for others."""
    if endpoint is not None:
        parse_endpoint(endpoint, "--rendezvous")
        os.environ["ZOBENCH_RENDEZVOUS"] = endpoint


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
    family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """The name of the network interface with this IPv4 or IPv6 address; None if no interface has it."""
    import psutil  # here: what only looks around does not wait for it

    if address.startswith("127."):  # Debian's own host name is 127.0.1.1, which no interface has
        address = "127.0.0.1"
    wanted = _address(address)
    for name, entries in psutil.net_if_addrs().items():
        if any(_address(e.address) == wanted for e in entries if e.family in (socket.AF_INET, socket.AF_INET6)):
            return str(name)
    return None


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The address in ``text``, which may name its interface after a ``%``."""
    return ipaddress.ip_address(text.partition("%")[0])


def socket_interface(library: str, interface: str) -> tuple[str, str]:
    """The environment variable with which ``library`` listens on that interface alone: (name, value)."""
    exactly = "=" if library == "NCCL" else ""  # else NCCL also takes one whose name goes on
    return f"{library}_SOCKET_IFNAME", exactly + interface

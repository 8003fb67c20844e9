"""Starts the ranks of a run on this machine: torch's elastic agent, and its rendezvous.

torchrun's own rendezvous listens on every interface and sends its state pickled. This one listens where it is told to,
on loopback unless the user names an address, and carries nothing but text and numbers.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from zobench.machine.device import check_devices
from zobench.machine.network import endpoint_of, parse_endpoint
from zobench.machine.processes import LAUNCHER, ended_by
from zobench.measure.threads import COUNT, available_cores, waiting
from zobench.parallel.world import timeout
from zobench.runspec import RunSpec

LOOPBACK = "127.0.0.1"
SHUTDOWN_SECONDS = 15
"""Between asking the other ranks to end and ending them."""
RETRY_SECONDS = 0.2
"""Between two looks for the first machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lost:
    """A rank that ended before it was done. ``code``: its exit code, negative for a signal."""

    rank: int
    code: int

    @property
    def reason(self) -> str:
        if self.code >= 0:
            return f"rank {self.rank} ended with exit code {self.code}"
        return f"rank {self.rank} was ended by {ended_by(self.code)}"


class Meeting(RendezvousHandler):
    """A fixed number of machines that meet in a store: on this machine if it has the store's address, else there.

    The machine with the store is the first, so that rank 0 is there; the others follow in the order in which they come.
    A round is the first start or a restart: every machine loses ranks when one does, so all come to each round.
    """

    def __init__(self, *, run: str, nodes: int = 1, endpoint: str = "") -> None:
        host, port = (LOOPBACK, 0) if not endpoint else parse_endpoint(endpoint)
        patience = timedelta(seconds=timeout())
        self.run, self.nodes, self.round = run, nodes, -1
        listener = _listen(host, port)
        if listener is None:
            self.store = _reach(host, port, f"{run}/open", patience)
        else:
            port = listener.getsockname()[1]
            self.store = TCPStore(
                host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach(), timeout=patience
            )
            self.store.set(f"{run}/open", "")
        self.host, self.port = host, port
        self.node = self._node_number(listener is not None)

    def _node_number(self, first: bool) -> int:
        """0 for the machine with the store. Raises ``ValueError`` for one machine too many."""
        number = 0 if first else int(self.store.add(f"{self.run}/nodes", 1))
        if number >= self.nodes:
            raise ValueError(
                f"`nodes={self.nodes}` machines must meet at {self.host}:{self.port}, but one more has come; "
                "give every run a port of its own"
            )
        return number

    @property
    def use_agent_store(self) -> bool:
        """Ranks use this store too: it outlives them."""
        return True

    def get_backend(self) -> str:
        return "zobench"

    def next_rendezvous(self) -> RendezvousInfo:
        """Waits for all machines. Raises ``OSError`` if one does not come in time."""
        self.round += 1
        store = PrefixStore(f"{self.run}/round {self.round}", self.store)
        store.set(f"here {self.node}", "")
        try:
            store.wait([f"here {node}" for node in range(self.nodes)])
        except RuntimeError:
            raise OSError(
                errno.ETIMEDOUT, f"{self.nodes} machines must meet at {self.host}:{self.port} with the same command, "
                f"but not all did within {timeout():g} s; compare their --set, and that each reaches that address",
            ) from None  # fmt: skip
        return RendezvousInfo(store, self.node, self.nodes, RendezvousStoreInfo(self.host, self.port))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Does nothing: nobody waits for a word."""

    def num_nodes_waiting(self) -> int:
        """None: their number is fixed."""
        return 0

    def get_run_id(self) -> str:
        """Under which ranks find their agent's folder of logs."""
        return self.run

    def shutdown(self) -> bool:
        """Lets no other machine in; the store ends with its process."""
        if self.node == 0:
            self.store.delete_key(f"{self.run}/open")
        return True


class Agent(LocalElasticAgent):
    """Torch's agent, which would give every rank half a minute to end, also one that has been stopped."""

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = SHUTDOWN_SECONDS) -> None:
        if self._pcontext is not None:
            self._pcontext.close(death_sig, min(timeout, SHUTDOWN_SECONDS))
        super()._shutdown(death_sig)


def meet(spec: RunSpec) -> Meeting:
    """The meeting of the machines of ``spec``, at ``ZOBENCH_RENDEZVOUS`` (HOST:PORT, an address of the first machine).

    Raises ``ValueError`` if there are several and no such place is named.
    """
    return Meeting(run=spec.hash, nodes=spec.nodes, endpoint=endpoint_of(spec, os.environ))


def start(command: Sequence[str], spec: RunSpec, meeting: Meeting, *, restarts: int = 0) -> Lost | None:
    """Runs ``command`` as each rank of this machine until all are done; the first that was lost, if one was.

    Each rank finds torchrun's variables in its environment. If one is lost all are ended, and started again up to
    ``restarts`` times. Raises ``KeyboardInterrupt`` if this process is told to end; then they have ended.
    """
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # a lost rank is told of in one line
    os.environ |= rank_environment(spec)
    work = WorkerSpec(
        role="rank", local_world_size=spec.gpus // spec.nodes, rdzv_handler=meeting, entrypoint=command[0],
        args=tuple(command[1:]), max_restarts=restarts, monitor_interval=0.1,
    )  # fmt: skip
    agent = Agent(work, logs_specs=DefaultLogsSpecs(log_dir=os.devnull), exit_barrier_timeout=timeout())
    try:
        failures = agent.run().failures
    except SignalException as ended:
        raise KeyboardInterrupt(str(ended)) from None
    finally:
        meeting.shutdown()
    if not failures:
        return None
    rank, first = min(failures.items(), key=lambda item: item[1].timestamp)
    return Lost(rank=rank, code=first.exitcode)


def _listen(host: str, port: int) -> socket.socket | None:
    """A socket that accepts connections at ``host`` alone; None if that is another machine's, or has another's already.

    Raises ``OSError``, as for a host that is not known.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(4096)
    except OSError as error:
        listener.close()
        if error.errno in (errno.EADDRNOTAVAIL, errno.EADDRINUSE):
            return None
        raise
    return listener


def _reach(host: str, port: int, key: str, patience: timedelta) -> TCPStore:
    """The store at the first machine, once ``key`` is there: until then it may be that of the run before, which ends.

    Raises ``OSError`` if none answers in time.
    """
    end = time.monotonic() + patience.total_seconds()
    while (left := end - time.monotonic()) > 0:
        try:
            with socket.create_connection((host, port), left):  # a try of TCPStore's own says much on stderr
                pass
            store = TCPStore(host, port, is_master=False, timeout=patience)
            if store.check([key]):
                return store
        except (OSError, RuntimeError):  # nobody is there yet, or not any more
            pass
        time.sleep(min(RETRY_SECONDS, left))
    seconds = patience.total_seconds()
    raise OSError(errno.ETIMEDOUT, f"the first machine must answer at {host}:{port}, but none did within {seconds:g} s")


def rank_environment(spec: RunSpec) -> dict[str, str]:
    """Returns the environment variables of every rank, less those that the user has set: its share of the cores on a
    CPU, and waits that leave a core to others."""
    wanted = {COUNT: str(max(1, available_cores() // (spec.gpus // spec.nodes))), **waiting()}
    return {**wanted, **{name: os.environ[name] for name in wanted if name in os.environ}, LAUNCHER: str(os.getpid())}


def again(arguments: Sequence[str], spec: RunSpec, *, restarts: int = 0) -> int:
    """Runs ``zobench ARGUMENTS`` as each rank of this machine, as torchrun would, and returns the exit code of all.

    Raises ``KeyboardInterrupt`` if this process is told to end; then they have ended.
    """
    check_devices(spec)
    lost = start((sys.executable, "-P", "-m", "zobench", *arguments), spec, meet(spec), restarts=restarts)
    if lost is None:
        return 0
    if lost.code < 0:
        print(f"zobench: {lost.reason}", file=sys.stderr)
    return lost.code if lost.code > 0 else 128 - lost.code

"""A real Slurm on this machine for all tests of this folder: munged, slurmctld and a slurmd for every node, on
loopback, in a folder of its own; and a results folder on a machine whose rates are known."""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.processes import free_port
from tests.support.site import Site

DAEMONS = ("munged", "slurmctld", "slurmd")
NODES = ("n1", "n2")
CPUS = 4
"""CPUs that each node claims to have; jobs that ask for one each run side by side."""

CONFIG = """
ClusterName=zobench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=5
MinJobAge=300
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout=300
MessageTimeout=30
{nodes}
PartitionName=main Nodes={first} Default=YES MaxTime=60 State=UP PriorityTier=1 OverSubscribe=NO
PartitionName=both Nodes={all} MaxTime=60 State=UP PriorityTier=1 OverSubscribe=NO
PartitionName=urgent Nodes={first} MaxTime=60 State=UP PriorityTier=10 PreemptMode=OFF OverSubscribe=NO
"""


def missing() -> str:
    """Why no Slurm can be started here, or ""."""
    absent = [name for name in DAEMONS if shutil.which(name, path=_path()) is None]
    if absent:
        return f"{', '.join(absent)} not here (apt-get install slurm-wlm munge)"
    return "" if os.geteuid() == 0 else "Slurm's daemons need root"


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Path]:
    """Starts the daemons, and ends them; gives the path of slurm.conf, which SLURM_CONF must name."""
    folder.chmod(0o755)
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o400)
    host, ports = socket.gethostname(), [free_port() for _ in range(1 + len(NODES))]
    rows = [
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} RealMemory=4000 State=UNKNOWN"
        for name, port in zip(NODES, ports[1:], strict=True)
    ]
    text = CONFIG.format(
        host=host, ctld=ports[0], folder=folder, nodes="\n".join(rows), first=NODES[0], all=",".join(NODES)
    )
    config = folder / "slurm.conf"
    config.write_text(text)
    with contextlib.ExitStack() as stack:
        socket_path = folder / "munge.socket"
        munge = ["munged", "--foreground", "--force", f"--socket={socket_path}", f"--key-file={folder}/munge.key"]
        munge += [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
        stack.enter_context(_daemon(munge, folder))
        _wait(socket_path.exists, "munged's socket", folder)
        stack.enter_context(_daemon(["slurmctld", "-D", "-f", str(config)], folder))
        for name in NODES:
            stack.enter_context(_daemon(["slurmd", "-D", "-N", name, "-f", str(config)], folder))
        _wait(lambda: _idle(config), "idle nodes", folder)
        try:
            yield config
        finally:  # a job outlives the daemons
            _ask(config, "scancel", "--user=root")
            _wait(lambda: _ask(config, "squeue", "--noheader") == "", "the end of all jobs", folder)


def _idle(config: Path) -> bool:
    return _ask(config, "sinfo", "-h", "-N", "-p", "both", "-o", "%T").split() == ["idle"] * len(NODES)


def _ask(config: Path, *command: str) -> str:
    environment = {**os.environ, "SLURM_CONF": str(config)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout


@contextlib.contextmanager
def _daemon(command: list[str], folder: Path) -> Iterator[None]:
    program = shutil.which(command[0], path=_path())
    assert program is not None
    with (folder / f"{command[0]}.out").open("ab") as out:
        process = subprocess.Popen([program, *command[1:]], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(ready: object, what: str, folder: Path, seconds: float = 60) -> None:
    assert callable(ready)
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            logs = "\n".join(f"{p.name}: {p.read_text(errors='replace')[-1500:]}" for p in folder.glob("*.[lo][ou]*"))
            raise RuntimeError(f"{what} did not come in {seconds:.0f} s\n{logs}")
        time.sleep(0.1)


def _path() -> str:
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])  # where Debian has its daemons


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which Slurm's commands find a running cluster of two nodes of four CPUs, both this machine."""
    if why := missing():
        pytest.skip(why)
    with running(tmp_path_factory.mktemp("slurm")) as config:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
        yield {**env, "SLURM_CONF": str(config)}


@pytest.fixture
def site(slurm: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Site]:
    """Makes a folder whose matrix has so many tiny cells."""
    monkeypatch.setenv("SLURM_CONF", slurm["SLURM_CONF"])
    return lambda count, **base: Site.of(tmp_path, count, slurm, **base)

"""The ceilings of this machine, measured: products and what a step does beside them, memory, link, ranks, disk."""

from __future__ import annotations

import os
import time
import timeit
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from zobench import kernels
from zobench.machine import accelerator
from zobench.machine.accelerator import Accelerator
from zobench.machine.directio import CHUNK, DirectFile, aligned, memory_of
from zobench.machine.memory import disk_folder
from zobench.measure.threads import Neighbours

MIB = 2**20
FILE_BYTES = 1024 * MIB
LOOPBACK = "127.0.0.1"
PATIENCE = timedelta(seconds=60)
REPEATS = 6
"""The same on all ranks: one that stopped earlier would leave the others waiting."""
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
HEADS, HEAD_WIDTH = 4, 64
TOKENS, WIDTH = 1024, 1024
"""The sizes of the activations: those of a small model, whose memory is new at each pass as theirs is."""
LOGITS = 1 << 22
"""Numbers of a piece of the logits: 16 MiB in float32, half of what the engine holds at once."""
NOISE = 1 << 20
ROW_SECONDS, ROW_RUNS = 2e-3, 100
"""A GPU's runs are issued in rows of about so long, of at most so many."""
KERNELS = 200
"""Tiny kernels that are issued in a row, so that what issues the first of them counts little."""


def calibrate(device: str, seconds: float = 5.0, disk_dir: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Rates of ``device`` ("cpu" or "cuda...") and of the disk under ``disk_dir``, in about ``seconds`` seconds.

    FLOP/s, bytes/s and elements/s; copy counts bytes read plus bytes written; "both" is the sum of two directions at
    once; "between ranks" is what each of them receives. None where there is no such thing here, and ``notes`` say why.
    ``operators_per_second`` and ``kernel_seconds``: see :func:`operator_rates`. ``other_cpu_cores``: how many of this
    process's cores others kept busy during products, copies and noise.
    """
    notes: list[str] = []
    neighbours = Neighbours()
    products = ("fp32", "fp16", "bf16", *(("tf32",) if device.startswith("cuda") else ()))
    rates: dict[str, Any] = {
        "matmul_flops_per_second": {name: matmul_rate(device, name, seconds * 0.1) for name in products},
        "copy_bytes_per_second": copy_rate(device, seconds * 0.05),
        "noise_elements_per_second": noise_rates(device, seconds * 0.05),
        "touch_bytes_per_second": None if device.startswith("cuda") else touch_rate(seconds * 0.02),
        **operator_rates(device, seconds * 0.2),
        "other_cpu_cores": neighbours.cores(),
        **link_rates(device, notes),
        "between_ranks_bytes_per_second": between_rate(device, notes),
        **disk_rates(disk_folder(disk_dir), seconds * 0.3, notes),
    }
    return {**rates, "notes": notes}


def matmul_rate(device: str, dtype: str, budget: float) -> float:
    """FLOP/s of a linear layer's product, at the largest shape of a growing row that fits the budget.

    ``dtype``: fp32, fp16, bf16, or tf32: fp32 on CUDA with products in TF32. Growing, because a CPU without
    instructions for a dtype can be hundreds of times slower than one with them.
    """
    with accelerator.tf32(dtype == "tf32"):
        return _matmul_rate(device, DTYPES.get(dtype, torch.float32), budget)


def _matmul_rate(device: str, kind: torch.dtype, budget: float) -> float:
    width = 8192 if device.startswith("cuda") else 2048
    rows, inner, outer = 32, width // 8, width // 4
    while True:
        x, weight = _operand(rows, inner, kind, device), _operand(outer, inner, kind, device)
        # several runs of a short product: one that another process disturbed must not end the row
        once = best_seconds(device, lambda x=x, w=weight: torch.nn.functional.linear(x, w), budget / 40)  # type: ignore[misc]
        if (rows, inner) == (2048, width) or once * 3 > budget / 8:  # the next shape is 8 to 16 times the work
            break
        rows, inner, outer = min(2048, rows * 4), min(width, inner * 2), min(4 * width, outer * 2)
    best = min(once, best_seconds(device, lambda: torch.nn.functional.linear(x, weight), budget - 2 * once))
    return 2.0 * rows * inner * outer / best


def _operand(rows: int, columns: int, kind: torch.dtype, device: str) -> torch.Tensor:
    """On a GPU of random numbers, as a step's are: equal ones switch few bits, and its clocks rise with the power that
    this saves."""
    operand = torch.full((rows, columns), 0.01, dtype=kind, device=device)
    return operand.normal_(std=0.01) if device.startswith("cuda") else operand


def copy_rate(device: str, budget: float) -> float:
    """Bytes read plus bytes written per second by a copy that does not fit the caches."""
    nbytes = (1024 if device.startswith("cuda") else 128) * MIB
    source = torch.ones(nbytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * nbytes / best_seconds(device, lambda: target.copy_(source), budget)


def touch_rate(budget: float) -> float:
    """Bytes/s of new pages of a CPU's memory, from the system and back to it, beside what writing them again takes."""
    memory = aligned(16 * MIB)
    new = best_seconds("cpu", lambda: aligned(memory.numel()).fill_(1), budget / 2)
    again = best_seconds("cpu", lambda: memory.fill_(1), budget / 2)
    return memory.numel() / max(new - again, 0.01 * again)


def noise_rates(device: str, budget: float) -> dict[str, float]:
    """Elements per second of fp32, each in ``budget`` seconds: standard normals that a torch generator draws, normals
    of the counter stream, and the fused pass, which draws an element's normal and writes both W + cz and W - cz."""
    kernels.prepare(device)
    generator = torch.Generator(device).manual_seed(0)
    weights, plus, minus = (
        torch.zeros((256 if device.startswith("cuda") else 8) * MIB // 4, device=device) for _ in range(3)
    )
    span = kernels.Span(0)
    draws: dict[str, Callable[[], Any]] = {
        "torch": lambda: plus.normal_(generator=generator),
        "counter": lambda: kernels.normals(0, span, plus),
        "fused": lambda: kernels.advance(weights, span, [], scratch=plus, mirror=minus, seed=1, scale=1e-3),
    }
    return {name: plus.numel() / best_seconds(device, draw, budget) for name, draw in draws.items()}


def best_seconds(device: str, action: Callable[[], Any], budget: float) -> float:
    """Seconds of the fastest of several runs after a first one; at least one run, then as many as the budget holds.

    On a GPU a run is one of a row, issued while those before it are computed, as a step issues its kernels: what the
    host takes to launch a lone one and to wait for it, 20 to 30 us, would count as the time of an operator of 10.
    """
    is_cuda = device.startswith("cuda")

    def row(runs: int) -> float:
        began = time.perf_counter()
        for _ in range(runs):
            action()
        if is_cuda:
            Accelerator(device).synchronize()
        return (time.perf_counter() - began) / runs

    row(1)
    end = time.perf_counter() + budget
    best = row(1)
    runs = max(1, min(ROW_RUNS, int(ROW_SECONDS / best))) if is_cuda else 1
    while runs > 1 or time.perf_counter() < end:
        best = min(best, row(runs))
        if time.perf_counter() >= end:
            break
    return best


def operator_rates(device: str, budget: float) -> dict[str, Any]:
    """Rates of ``device`` in about ``budget`` seconds: ``operators_per_second``, by dtype ``attention`` in FLOP/s,
    ``passes`` and ``losses`` in bytes/s, ``normals`` of torch's generator and ``fused`` draws with both writes in
    elements/s; and ``kernel_seconds``."""
    part = budget / (5 * len(DTYPES) + 1)
    measures = {
        "attention": attention_rate, "passes": pass_rate, "losses": loss_rate, "normals": normal_rate,
        "fused": fused_rate,
    }  # fmt: skip
    rates = {kind: {name: rate(device, kind, part) for name, rate in measures.items()} for kind in DTYPES}
    return {"operators_per_second": rates, "kernel_seconds": kernel_seconds(device, part)}


def attention_rate(device: str, kind: str, budget: float) -> float:
    """FLOP/s of causal attention, of which half the products are needed, as torch's fused kernel computes it."""
    heads, tokens = (8 * HEADS, 2 * TOKENS) if device.startswith("cuda") else (HEADS, TOKENS)
    query = torch.full((1, heads, tokens, HEAD_WIDTH), 0.1, dtype=DTYPES[kind], device=device)
    attend = torch.nn.functional.scaled_dot_product_attention
    once = best_seconds(device, lambda: attend(query, query, query, is_causal=True), budget)
    return 2 * heads * tokens**2 * HEAD_WIDTH / once


def pass_rate(device: str, kind: str, budget: float) -> float:
    """Bytes/s, read and written, of what a block does with its activations: a norm, an activation, a sum. On a GPU
    they are larger than its cache: weights are passed over at this rate too."""
    tokens = TOKENS * (32 if device.startswith("cuda") else 1)
    states = torch.full((tokens, WIDTH), 0.5, dtype=DTYPES[kind], device=device)
    scale = torch.ones(WIDTH, dtype=DTYPES[kind], device=device)

    def block() -> Any:
        normed = torch.nn.functional.layer_norm(states, (WIDTH,), scale, scale)
        return states + torch.relu(normed)

    once = best_seconds(device, block, budget)
    return (2 + 2 + 3) * states.numel() * states.element_size() / once


def loss_rate(device: str, kind: str, budget: float) -> float:
    """Bytes/s of a loss from logits of ``kind``: their cast to float32, a softmax."""
    rows = LOGITS // (1 << 15)
    logits = torch.full((rows, LOGITS // rows), 0.5, dtype=DTYPES[kind], device=device)
    once = best_seconds(device, lambda: torch.log_softmax(logits.float(), dim=-1), budget)
    cast = logits.element_size() + 4 if logits.element_size() < 4 else 0
    return logits.numel() * (8 + cast) / once


def normal_rate(device: str, kind: str, budget: float) -> float:
    """Standard normals per second that a torch generator writes."""
    generator = torch.Generator(device).manual_seed(0)
    space = torch.empty(_elements(device), dtype=DTYPES[kind], device=device)
    return space.numel() / best_seconds(device, lambda: space.normal_(generator=generator), budget)


def fused_rate(device: str, kind: str, budget: float) -> float:
    """Elements per second of the counter stream's pass that draws z and writes W + c z."""
    kernels.prepare(device)
    span = kernels.Span(0)
    weights, scratch = (torch.zeros(_elements(device), dtype=DTYPES[kind], device=device) for _ in range(2))

    def draw() -> None:
        kernels.advance(weights, span, [], scratch=scratch, seed=1, scale=1e-3)

    return weights.numel() / best_seconds(device, draw, budget)


def kernel_seconds(device: str, budget: float) -> float:
    """Seconds that the smallest operator takes."""
    number = torch.zeros(1, device=device)

    def many() -> None:
        for _ in range(KERNELS):
            number.add_(1)

    return best_seconds(device, many, budget) / KERNELS


def _elements(device: str) -> int:
    return NOISE * (64 if device.startswith("cuda") else 1)


def link_rates(device: str, notes: list[str], nbytes: int = 512 * MIB) -> dict[str, float | None]:
    """Bytes/s between pinned host memory and a CUDA device: up, down, and the sum of both at once."""
    names = [f"link_{way}_bytes_per_second" for way in ("up", "down", "both")]
    if not device.startswith("cuda"):
        notes.append("link: none, because the device is the CPU")
        return dict.fromkeys(names)
    hosts = [torch.ones(nbytes, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    devices = [torch.ones(nbytes, dtype=torch.uint8, device=device) for _ in range(2)]
    streams = [Accelerator(device).stream() for _ in range(2)]
    Accelerator(device).synchronize()  # what was filled above is another stream's

    def copy(lane: int) -> None:
        ends = (devices[0], hosts[0]) if lane == 0 else (hosts[1], devices[1])
        with streams[lane]:
            ends[0].copy_(ends[1], non_blocking=True)

    up = nbytes / best_seconds(device, lambda: copy(0), 0.2)
    down = nbytes / best_seconds(device, lambda: copy(1), 0.2)

    def copy_both() -> None:
        copy(0)
        copy(1)

    both = 2 * nbytes / best_seconds(device, copy_both, 0.2)
    return dict(zip(names, (up, down, both), strict=True))


def disk_rates(
    folder: str | os.PathLike[str], budget: float, notes: list[str], nbytes: int = FILE_BYTES
) -> dict[str, Any]:
    """Bytes/s of a :class:`DirectFile` in ``folder``: write, read, and the sum of both at once in two threads."""
    names = ("disk_write_bytes_per_second", "disk_read_bytes_per_second", "disk_both_bytes_per_second")
    try:
        os.makedirs(folder, exist_ok=True)
        with DirectFile(os.path.join(folder, f".zobench-calibrate-{os.getpid()}"), nbytes) as file:
            if file.note:
                notes.append(file.note)
            write, read, both = _disk_passes(file, budget / 4)
            return {**dict(zip(names, (write, read, both), strict=True)), "disk_direct": file.direct}
    except OSError as error:
        notes.append(f"disk: not measured ({error.strerror})")
        return {**dict.fromkeys(names), "disk_direct": None}


def _disk_passes(file: DirectFile, budget: float) -> tuple[float, float, float]:
    buffers = [memory_of(_incompressible(aligned(min(CHUNK, file.nbytes // 2)))) for _ in range(2)]
    size = len(buffers[0])
    # The first write of a reserved block is slower than a rewrite, and a block never written is read from no disk.
    filled = _sweep(file.write_from, buffers[0], 0, file.nbytes // size * size, budget, once=True)[0]
    filled = max(filled, 2 * size)
    file.write_from(buffers[0], size)  # both halves exist even on a disk too slow to fill more in its time
    half = filled // size // 2 * size
    write_bytes, write_s = _sweep(file.write_from, buffers[0], 0, filled, budget)
    read_bytes, read_s = _sweep(file.read_into, buffers[1], 0, filled, budget)
    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(_sweep, file.write_from, buffers[0], 0, half, budget)
        reading = pool.submit(_sweep, file.read_into, buffers[1], half, filled, budget)
        both = sum(nbytes / taken for nbytes, taken in (writing.result(), reading.result()))
    return write_bytes / write_s, read_bytes / read_s, both


def _sweep(
    request: Callable[[memoryview, int], None],
    buffer: memoryview,
    start: int,
    end: int,
    budget: float,
    once: bool = False,
) -> tuple[int, float]:
    """(bytes moved, seconds) of requests over [start, end) of the file, again and again until the budget is used."""
    began, moved, offset = time.perf_counter(), 0, start
    while True:
        request(buffer, offset)
        moved += len(buffer)
        offset += len(buffer)
        elapsed = time.perf_counter() - began
        if elapsed >= budget or (once and offset >= end):
            return moved, elapsed
        offset = offset if offset < end else start


def _incompressible(buffer: torch.Tensor) -> torch.Tensor:
    """The buffer filled with random bytes: some disks and file systems store zeros without storing anything."""
    tile = torch.frombuffer(bytearray(os.urandom(MIB)), dtype=torch.uint8)
    for start in range(0, buffer.numel(), MIB):
        piece = buffer[start : start + MIB]
        piece.copy_(tile[: piece.numel()])
    return buffer


def between_rate(device: str, notes: list[str]) -> float | None:
    """Bytes per second that a rank receives from the others while all receive (B_NVLink of DistZO2's equation 3).

    On CUDA NCCL's all-gather among all visible GPUs; on the CPU two ranks that broadcast a half each over Gloo on
    loopback, which is how :mod:`zobench.parallel.hosts` makes a block whole there. None where there are no peers, or
    they cannot talk; then ``notes`` say why.
    """
    try:
        return _among_gpus(notes) if device.startswith("cuda") else _among_processes()
    except (RuntimeError, AttributeError) as error:  # of Gloo and NCCL, or a torch that was built without them
        notes.append(f"between ranks: not measured ({' '.join(str(error).split())})")
        return None


def _among_gpus(notes: list[str], nbytes: int = 256 * MIB) -> float | None:
    devices = accelerator.devices()
    count = len(devices)
    if count < 2:
        notes.append("between ranks: none, because one GPU is visible")
        return None
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")  # all GPUs are this process's: nobody else need reach it
    slice_bytes = nbytes // count
    slices = [torch.ones(slice_bytes, dtype=torch.uint8, device=each.device) for each in devices]
    slots = [torch.empty(slice_bytes * count, dtype=torch.uint8, device=each.device) for each in devices]

    def gather() -> None:
        accelerator.gather(slices, slots)
        for each in devices:
            each.synchronize()

    return slice_bytes * (count - 1) / _best_seconds(gather)


def _among_processes(nbytes: int = 64 * MIB) -> float:
    """Two ranks as threads of this process: the bytes go through the same sockets, and no process need start."""
    store = dist.HashStore()  # type: ignore[attr-defined]

    def rate(rank: int) -> float:
        group, slot = _gloo(store, rank), torch.ones(nbytes, dtype=torch.uint8)
        return nbytes / 2 / _best_seconds(lambda: _exchange_halves(group, slot))

    with ThreadPoolExecutor(2) as pool:
        return min(done.result() for done in as_completed([pool.submit(rate, rank) for rank in range(2)]))


def _gloo(store: Any, rank: int) -> Any:
    """A group of two that listens on loopback alone. Torch has no public way to make two in one process."""
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices, options._timeout = [gloo.create_device(hostname=LOOPBACK)], PATIENCE
    return gloo(store, rank, 2, options)


def _exchange_halves(group: Any, slot: torch.Tensor) -> None:
    sent = []
    for number, half in enumerate(slot.chunk(2)):
        options = dist.BroadcastOptions()
        options.rootRank = number
        sent.append(group.broadcast([half], options))
    for work in sent:
        work.wait()


def _best_seconds(action: Callable[[], None]) -> float:
    """Seconds of the fastest of ``REPEATS`` runs after a first one."""
    action()
    return min(timeit.repeat(action, timer=time.perf_counter, number=1, repeat=REPEATS))

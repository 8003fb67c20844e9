"""The kernels: Philox's published answers, every back end == the torch reference in bits, rounding as torch rounds."""

import importlib.util
import itertools
import math
import os
import subprocess
import sys
import types

import numpy as np
import pytest
import torch

from tests.support.bits import any_bits
from tests.support.devices import ON_GPU
from zobench import ZOSGD, Batch, Engine, EngineConfig, kernels, models
from zobench.kernels import Flat, Segment, Span, Update, philox
from zobench.models.weights import RandomWeights

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
STARTS = [0, 1, 2, 3, 1021, 2**32 - 6, 2**34 - 3, 2**34 + 1]
UPDATES = [Update(2**63 + 5, 0.7, 0.03, 0.1), Update(-1, -1.3, 0.02), Update(12345678901234, 3e-3, 1.5, 1e-4)]
WORD = 0xFFFFFFFF
SMALL = {"sizes": (1, 1027), "lengths": (3,)}

ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((WORD,) * 4, (WORD,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
"""Random123's kat_vectors for philox4x32 10: counter, key, output."""

needs_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def python_philox(counter, key):
    """Philox4x32-10 in Python's own integers, written from the paper."""
    (a, b, c, d), (k, m) = counter, key
    for _ in range(10):
        p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (q >> 32) ^ b ^ k, q & WORD, (p >> 32) ^ d ^ m, p & WORD
        k, m = (k + 0x9E3779B9) & WORD, (m + 0xBB67AE85) & WORD
    return a, b, c, d


def python_normal(seed, tensor_id, element):
    """z in float64 with libm, from the definition; only the uniform is rounded to float32, as it says."""
    block = element // 4
    x = python_philox((block & WORD, block >> 32, tensor_id, 0), (seed & WORD, seed >> 32 & WORD))
    radius_word, angle_word = x[element % 4 // 2 * 2 :][:2]
    uniform = float((np.float32(radius_word >> 1) + np.float32(0.5)) * np.float32(2.0**-31))
    radius = math.sqrt(-2 * math.log(uniform))
    signed = angle_word - (1 << 32) if angle_word >> 31 else angle_word
    angle = (signed >> 2) * math.pi / 4 / 2**29
    turn = math.cos if (angle_word & 1) == element % 2 else math.sin
    return (-radius if angle_word & 2 else radius) * turn(angle)


def philox_words(counter, key):
    return tuple(int(w) for w in philox.words([torch.tensor([c]) for c in counter], key))


def bits(tensor):
    """The tensor's bits as integers, all NaNs made one."""
    tensor = torch.where(tensor.isnan(), torch.full_like(tensor, math.nan), tensor).cpu()
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


def same(a, b):
    return torch.equal(bits(a), bits(b))


def drawn(backend, seed, span, shape, device="cpu"):
    out = torch.full(shape if isinstance(shape, tuple) else (shape,), math.nan, device=device)
    backend.normals(seed, span, out)
    return out


def moved(backend, dtype, shape, span, updates, device="cpu"):
    """Everything that ``advance`` and ``flip`` can write, from fixed inputs."""
    generator = torch.Generator().manual_seed(1)
    master, base, scratch, mirror = (torch.randn(shape, generator=generator).to(dtype).to(device) for _ in range(4))
    backend.advance(master, span, updates, None, scratch, None, 9, 0.01)
    rebased, both = master.clone(), scratch.clone()
    backend.advance(rebased, span, updates, base, both, mirror, -9, 1e-3)
    only = torch.empty_like(mirror)
    backend.advance(rebased, span, [], None, None, only, 2**40, 1e-3)
    flipped = both.clone()
    backend.flip(rebased, flipped)
    return master, scratch, rebased, both, mirror, only, flipped


def agree(backend, device="cpu", sizes=(1, 1023, 1025, 2050), dtypes=DTYPES, lengths=(1, 2, 5, 17)):
    """Raises unless the back end gives the reference's bits for all it can be asked for."""
    for size, start in itertools.product(sizes, STARTS):
        span = Span(WORD - 6, start)
        assert same(drawn(backend, 7, span, size, device), drawn(philox, 7, span, size)), (size, start)
    for size, dtype, count in itertools.product(sizes[1:], dtypes, (0, 1, 3)):
        span = Span(3, 5 + count)
        got = moved(backend, dtype, (size,), span, UPDATES[:count], device)
        for which, (a, b) in enumerate(zip(got, moved(philox, dtype, (size,), span, UPDATES[:count]), strict=True)):
            assert same(a, b), (size, dtype, count, which)
    rows = torch.tensor([5, 0, 5, 2**33 + 1])
    for width, dtype in itertools.product((1, 7, 300), dtypes):
        here, there = Span(2, rows=rows.to(device)), Span(2, rows=rows)
        assert same(drawn(backend, 3, here, (4, width), device), drawn(philox, 3, there, (4, width))), width
        for a, b in zip(
            moved(backend, dtype, (4, width), here, UPDATES, device),
            moved(philox, dtype, (4, width), there, UPDATES),
            strict=True,
        ):
            assert same(a, b), (width, dtype)
    every = itertools.product(dtypes, FLAT_STARTS) if len(lengths) > 1 else zip(dtypes, FLAT_STARTS, strict=False)
    agree_flat(backend, device, list(every), lengths)
    for dtype in dtypes:
        master, scratch = any_bits(dtype, 1 << 16, 1), any_bits(dtype, 1 << 16, 2)
        expected = (2 * master.float() - scratch.float()).to(dtype)
        ours = scratch.to(device)
        backend.flip(master.to(device), ours)
        assert same(ours, expected), dtype


def laid_out(dtype, sizes, starts):
    """(tensors of these sizes at multiples of 64 bytes, every other one decayed; bytes)."""
    segments, offset = [], 128 // dtype.itemsize
    for number, (size, start) in enumerate(zip(sizes, itertools.cycle(starts), strict=False)):
        segments.append(Segment(WORD - number, start, offset, size, decayed=number % 2 == 0))
        offset += -(-size * dtype.itemsize // 64) * 64 // dtype.itemsize
    return Flat(dtype, segments), (offset + 96) * dtype.itemsize


def tensor_in(buffer, dtype, segment):
    return buffer.view(dtype)[segment.offset : segment.offset + segment.numel]


def flat_buffers(dtype, nbytes, device):
    generator = torch.Generator().manual_seed(3)
    values = [torch.randn(nbytes // dtype.itemsize, generator=generator).to(dtype) for _ in range(3)]
    return [value.view(torch.uint8).to(device) for value in values]


FLAT_STARTS = [(0,), (4, 2**34), (2**34 + 1, 0)]


def agree_flat(backend, device, kinds, lengths):
    """Raises unless a pass over tensors in a flat buffer is the reference's over each; what pads weights stays.

    ``kinds``: (dtype, the tensors' first elements)."""
    sizes = [1027, 1, 300, 4096, 15, 1024, 1, 2049, 16, 31, 64, 5, 7, 1000, 3, 2, 1]
    for (dtype, starts), length in itertools.product(kinds, lengths):
        flat, nbytes = laid_out(dtype, sizes[:length], starts)
        for updates, based, scratched in itertools.product((UPDATES[:0], UPDATES), (False, True), (False, True)):
            results = []
            for module, place in ((backend, device), (philox, "cpu")):
                master, base, scratch = flat_buffers(dtype, nbytes, place)
                own = {"base": base if based else None, "scratch": scratch if scratched else None}
                module.advance_flat(master, Flat(dtype, flat.segments), updates, seed=11, scale=0.125, **own)
                pieces = [tensor_in(buffer, dtype, own) for buffer in (master, scratch) for own in flat.segments]
                results.append((base, base if based else master, *pieces))
            for which, (a, b) in enumerate(zip(*results, strict=True)):
                assert same(a.view(dtype), b.view(dtype)), (dtype, length, starts, len(updates), based, which)


@pytest.fixture
def cpu(monkeypatch):
    """The numba back end with small pieces, so that small tensors are spread over threads."""
    module = pytest.importorskip("zobench.kernels.cpu")
    monkeypatch.setattr(module, "SMALLEST", 2)
    return module


@pytest.mark.parametrize(("counter", "key", "output"), ANSWERS)
def test_philox_gives_the_published_answers(counter, key, output):
    assert python_philox(counter, key) == output
    assert philox_words(counter, key) == output


@pytest.mark.parametrize(("name", "value"), [("MULTIPLIERS", (0xD2511F53, 0xCD9E8D59)), ("ROUNDS", 9)])
def test_a_wrong_philox_constant_is_found(monkeypatch, name, value):
    monkeypatch.setattr(philox, name, value)
    assert philox_words(*ANSWERS[2][:2]) != ANSWERS[2][2]


@pytest.mark.parametrize("start", STARTS)
def test_normals_are_what_the_definition_says(start):
    got = drawn(philox, 2**63 + 11, Span(77, start), 64)
    for i, z in enumerate(got.tolist()):
        assert z == pytest.approx(python_normal(2**63 + 11, 77, start + i), rel=6e-7, abs=1e-12)


def test_normals_are_within_a_few_ulp_of_float64():
    """A million pairs, against torch's float64 functions of the same words."""
    words = [torch.randint(0, 2**32, (1 << 20,), generator=torch.Generator().manual_seed(i)) for i in (0, 1)]
    words[0][:1000] = torch.arange(1000)
    first, second = philox.box_muller(*words)
    uniform = ((words[0] >> 1).float() + 0.5) * 2.0**-31
    radius = (-2 * uniform.double().log()).sqrt()
    angle = (words[1].to(torch.int32) >> 2).double() * (math.pi / 4 / 2**29)
    sine, cosine = angle.sin(), angle.cos()
    swap = (words[1] & 1) != 0
    for got, exact in ((first, torch.where(swap, sine, cosine)), (second, torch.where(swap, cosine, sine))):
        exact = radius * exact * torch.where((words[1] & 2) != 0, -1, 1)
        spacing = torch.nextafter(exact.float().abs(), torch.tensor(math.inf)).double() - exact.float().abs().double()
        assert ((got.double() - exact).abs() / spacing).max() < 6


def test_the_extreme_words_give_finite_normals():
    extremes = torch.tensor([0, 1, 2, 3, 2**31 - 1, 2**31, 2**32 - 4, 2**32 - 1])
    x, y = torch.cartesian_prod(extremes, extremes).unbind(1)
    values = torch.cat(philox.box_muller(x, y))
    assert values.isfinite().all()
    assert 6.5 < values.abs().max() < 6.8


def test_numba_equals_the_reference(cpu):
    agree(cpu, sizes=(1, 1023, 1025, 4 * cpu.TILE + 3, 9 * cpu.TILE + 1))


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_change_nothing(cpu, threads):
    before, expected = torch.get_num_threads(), drawn(philox, 1, Span(1, 3), 300_001)
    torch.set_num_threads(threads)
    try:
        assert same(drawn(cpu, 1, Span(1, 3), 300_001), expected)
    finally:
        torch.set_num_threads(before)


def test_an_error_in_a_piece_reaches_the_caller(cpu):
    def fails(begin, end):
        if begin:
            raise ZeroDivisionError(begin, end)

    with pytest.raises(ZeroDivisionError):
        cpu._spread(fails, 100 * cpu.TILE)


def _high_word_forgotten(seed, tensor_id, elements, real=philox.z_of):
    return real(seed, tensor_id, elements & (1 << 34) - 1)


def _tensor_forgotten(seed, tensor_id, elements, real=philox.z_of):
    return real(seed, 0, elements)


def _fused(w, u, z):
    return (w.double() - (z.double() * u.g + w.double() * u.weight_decay) * u.lr).float()


def _always_decayed(w, u, z):
    return w - (z * philox.f32(u.g) + w * philox.f32(u.weight_decay + 1e-3)) * philox.f32(u.lr)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("z_of", _high_word_forgotten),
        ("z_of", _tensor_forgotten),
        ("_updated", _fused),
        ("_updated", _always_decayed),
        ("COS", philox.SIN),
    ],
)
def test_a_planted_difference_is_found(cpu, monkeypatch, name, wrong):
    monkeypatch.setattr(philox, name, wrong)
    with pytest.raises(AssertionError):
        agree(cpu, sizes=(1, 1025), dtypes=[torch.float32])


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_every_16_bit_value_widens_and_narrows_to_itself(cpu, dtype):
    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    wide = torch.empty(every.numel())
    cpu._load(cpu._array(every), wide.numpy())
    assert same(wide, every.float())
    copy = torch.zeros_like(every)
    kernels.advance(copy, Span(0), [], base=every)
    assert same(copy, every)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_float32_narrows_as_torch_narrows(cpu, dtype):
    """All 16-bit values, all midpoints between two of them, both neighbours of each, and a million bit patterns."""
    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype).float()
    after = torch.nextafter(every.to(dtype), torch.tensor(math.inf, dtype=dtype)).float()
    middle = (every.double() / 2 + after.double() / 2).float()
    infinity = torch.tensor(math.inf)
    near = [f(x, s * infinity) for x in (every, middle) for s in (1, -1) for f in (torch.nextafter,)]
    wide = torch.cat([every, middle, *near, any_bits(torch.float32, 1 << 20, 3)])
    narrow = torch.empty(wide.numel(), dtype=dtype)
    rounded = wide.clone()
    cpu._store(rounded.numpy(), cpu._array(narrow))
    assert same(narrow, wide.to(dtype))
    assert same(rounded, wide.to(dtype).float())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_in_pieces_equals_the_whole(cpu, dtype):
    whole = torch.randn(5000, generator=torch.Generator().manual_seed(0)).to(dtype)
    parts, outputs = whole.clone(), [torch.empty(5000, dtype=dtype) for _ in range(4)]
    kernels.advance(whole, Span(4, 7), UPDATES, scratch=outputs[0], mirror=outputs[1], seed=1, scale=0.1)
    for begin, end in itertools.pairwise([0, 1, 6, 1023, 1024, 3001, 5000]):
        pieces = [t[begin:end] for t in (parts, *outputs[2:])]
        span = Span(4, 7 + begin)
        kernels.advance(pieces[0], span, UPDATES, scratch=pieces[1], mirror=pieces[2], seed=1, scale=0.1)
    assert same(parts, whole)
    assert same(outputs[2], outputs[0])
    assert same(outputs[3], outputs[1])


@pytest.mark.parametrize("width", [1, 6, 8, 1500])
def test_rows_are_the_tensors_rows(width):
    table, rows = drawn(kernels, 5, Span(8), (10, width)), torch.tensor([9, 0, 3, 3])
    assert same(drawn(kernels, 5, Span(8, rows=rows), (4, width)), table[rows])
    assert drawn(kernels, 5, Span(8, rows=rows[:0]), (0, width)).numel() == 0


def test_the_three_outputs_follow_the_formula():
    """float32, written out with torch's own operations."""
    master, span = torch.randn(3000, generator=torch.Generator().manual_seed(0)), Span(6, 2)
    w, scratch, mirror = master.clone(), torch.empty(3000), torch.empty(3000)
    for u in UPDATES:
        step = drawn(kernels, u.seed, span, 3000) * u.g
        step = step + w * u.weight_decay if u.weight_decay else step
        w = w - step * u.lr
    kernels.advance(master, span, UPDATES, scratch=scratch, mirror=mirror, seed=3, scale=0.5)
    assert same(master, w)
    assert same(scratch, w + drawn(kernels, 3, span, 3000) * 0.5)
    assert same(mirror, 2 * w - scratch)
    kernels.flip(master, scratch)
    assert same(scratch, mirror)


def test_nothing_asked_writes_nothing():
    master = torch.tensor([math.nan, 1.0])
    before = master.clone()
    kernels.advance(master, Span(0), [])
    assert same(master, before)


def test_meta_tensors_are_left_alone():
    meta = torch.empty(5, 4, device="meta")
    kernels.normals(0, Span(0), meta)
    kernels.advance(meta, Span(0), UPDATES, scratch=meta, mirror=meta)
    kernels.flip(meta, meta)


@pytest.mark.parametrize(
    ("span", "buffers", "message"),
    [
        (Span(0), [torch.zeros(4, 4).T], "contiguous"),
        (Span(0), [torch.zeros(4), torch.zeros(5)], "one size"),
        (Span(0), [torch.zeros(4), torch.zeros(4).half()], "one size"),
        (Span(0), [torch.zeros(4).double()], "float64"),
        (Span(1 << 32), [torch.zeros(4)], "tensor_id"),
        (Span(0, rows=torch.tensor([1])), [torch.zeros(4)], "rows"),
        (Span(0, 1, torch.tensor([1])), [torch.zeros(1, 4)], "start"),
        (Span(0, rows=torch.tensor([1], dtype=torch.int32)), [torch.zeros(1, 4)], "int64"),
    ],
)
def test_what_does_not_fit_is_refused(span, buffers, message):
    with pytest.raises(ValueError, match=message):
        kernels.advance(buffers[0], span, [], scratch=buffers[-1])


def test_normals_of_16_bits_are_refused():
    with pytest.raises(ValueError, match="float32"):
        kernels.normals(0, Span(0), torch.empty(4).half())


@needs_numba
def test_without_numba_the_reference_serves_and_says_so_once(monkeypatch):
    expected = drawn(kernels, 1, Span(2), 5000)
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "zobench.kernels.cpu")
    kernels._backend.cache_clear()
    try:
        with pytest.warns(UserWarning, match="pip install numba") as caught:
            results = [drawn(kernels, 1, Span(2), 5000) for _ in range(2)]
        kernels.prepare()
        assert len(caught) == 1
        assert all(same(r, expected) for r in results)
    finally:
        kernels._backend.cache_clear()


def instances(monkeypatch, calls):
    """The forms in which the kernels of ``calls()`` are asked for: what compiles a kernel of its own."""
    asked, real = set(), kernels._backend("cpu")

    def normals(seed, span, out):
        asked.add(("normals", out.dtype, span.rows is None))
        real.normals(seed, span, out)

    def advance(master, span, updates, base, scratch, *rest):
        rows = "tensor" if span.rows is None else "rows"
        asked.add((rows, master.dtype, bool(updates), base is None, scratch is None))
        real.advance(master, span, updates, base, scratch, *rest)

    def advance_flat(master, flat, updates, base, scratch, *rest):
        asked.add(("flat", flat.dtype, bool(updates), base is None, scratch is None))
        real.advance_flat(master, flat, updates, base, scratch, *rest)

    def flip(master, scratch):
        asked.add(("flip", master.dtype))
        real.flip(master, scratch)

    fake = types.SimpleNamespace(normals=normals, advance=advance, advance_flat=advance_flat, flip=flip)
    monkeypatch.setattr(kernels, "_backend", lambda device: fake)
    calls()
    monkeypatch.undo()
    return asked


@needs_numba
def test_prepare_asks_for_every_kernel_that_a_step_asks_for(monkeypatch):
    """With the rows of an embedding, and updates that are pending: else a measured step compiles."""
    model, ids = models.build("opt-tiny", "fp16"), torch.arange(20).view(1, 20)

    def steps():
        config = EngineConfig(noise="counter", writeback_every=2)
        with Engine(model, config, weights=RandomWeights(model, 0)) as engine:
            method = ZOSGD(lr=1e-3)
            for _ in range(5):
                method.step(engine, Batch(ids, ids))

    asked = instances(monkeypatch, steps)
    assert {("rows", torch.float16, True), ("flat", torch.float16, True)} <= {form[:3] for form in asked}
    assert asked <= instances(monkeypatch, kernels.prepare)


@needs_triton
@pytest.mark.parametrize("planted", ["none", "broken", "another error"])
def test_without_a_c_compiler_prepare_says_what_to_install(planted, monkeypatch, tmp_path):
    """Triton's own error, from its own build."""
    from triton.runtime import build

    def normals(seed, span, out):
        if planted == "another error":
            raise RuntimeError("CUDA error: misaligned address")
        build._build("name", str(tmp_path / "name.c"), str(tmp_path), [], [], [], [])

    monkeypatch.setattr(kernels, "_backend", lambda device: types.SimpleNamespace(normals=normals))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    if planted == "broken":
        monkeypatch.setenv("CC", "/bin/false")
    if planted == "another error":
        with pytest.raises(RuntimeError, match="misaligned"):
            kernels.prepare()
        return
    message = r"`noise=counter` on cpu needs a C compiler and Python's headers.*install gcc and python3-dev"
    with pytest.raises(ValueError, match=message):
        kernels.prepare()


@pytest.mark.slow
@needs_triton
def test_triton_equals_the_reference_in_its_interpreter():
    """In a process of its own: Triton reads the switch when the kernels are defined."""
    program = "from tests.kernels import test_kernels as t; from zobench.kernels import gpu; t.agree(gpu, **t.SMALL)"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


class TestOnGpu:
    pytestmark = ON_GPU

    def test_triton_equals_the_reference(self):
        from zobench.kernels import gpu

        agree(gpu, "cuda")

    def test_a_buffer_beyond_2_to_the_31_elements(self):
        size = 2**31 + 4099
        out = torch.empty(size, device="cuda")
        kernels.normals(4, Span(1), out)
        assert same(out[-5000:], drawn(philox, 4, Span(1, size - 5000), 5000))

    def test_no_seed_count_or_scale_compiles_anew(self):
        from zobench.kernels import gpu

        master, scratch = torch.zeros(4096, device="cuda"), torch.zeros(4096, device="cuda")
        for i, seed in enumerate((1, 2**31, -1, 2**62)):
            kernels.advance(master, Span(i), UPDATES[: 1 + i % 3], scratch=scratch, seed=seed, scale=1.0 + i)
            if not i:
                compiled = sum(len(c[0]) for c in gpu._advance.device_caches.values())
        assert sum(len(c[0]) for c in gpu._advance.device_caches.values()) == compiled

    def test_no_call_waits_for_the_device(self):
        master = torch.zeros(4096, device="cuda")
        kernels.advance(master, Span(0), UPDATES)
        with torch.cuda.device(master.device):
            torch.cuda.set_sync_debug_mode("error")
            try:
                kernels.advance(master, Span(0), UPDATES[1:], scratch=torch.zeros_like(master), seed=1, scale=1.0)
            finally:
                torch.cuda.set_sync_debug_mode("default")

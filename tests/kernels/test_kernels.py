"""The kernels: Philox's published answers, every back end == the torch reference in bits, rounding as torch rounds."""

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from tests.support.devices import ON_GPU
from tests.support.kernels import (
    DTYPES,
    STARTS,
    UPDATES,
    WORD,
    agree,
    any_bits,
    drawn,
    needs_triton,
    run_interpreted,
    same,
)
from zobench import kernels
from zobench.kernels import Span, cpu_threads, philox
from zobench.kernels.cpu_threads import TILE, spread
from zobench.runspec.kinds import LAWS

ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((WORD,) * 4, (WORD,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
     (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]  # fmt: skip
"""Random123's kat_vectors for philox4x32 10: counter, key, output."""


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


@pytest.fixture
def cpu(monkeypatch):
    """The numba back end with small pieces, so that small tensors are spread over threads."""
    module = pytest.importorskip("zobench.kernels.cpu")
    monkeypatch.setattr(cpu_threads, "SMALLEST", 2)
    return module


@pytest.mark.parametrize(("counter", "key", "output"), ANSWERS)
def test_philox_gives_the_published_answers(counter, key, output):
    assert python_philox(counter, key) == output
    assert tuple(int(w) for w in philox.words([torch.tensor([c]) for c in counter], key)) == output


@pytest.mark.parametrize("start", STARTS)
def test_normals_are_what_the_definition_says(start):
    got = drawn(philox, 2**63 + 11, Span(77, start), 64)
    for i, z in enumerate(got.tolist()):
        assert z == pytest.approx(python_normal(2**63 + 11, 77, start + i), rel=6e-7, abs=1e-12)


@pytest.mark.parametrize("start", STARTS)
def test_signs_are_what_the_definition_says(start):
    seed = 11 | philox.SIGNS
    for i, z in enumerate(drawn(philox, seed, Span(77, start), 300).tolist()):
        element = start + i
        block = element // 128
        x = python_philox((block & WORD, block >> 32, 77, 1), (seed & WORD, seed >> 32))
        assert z == (-1 if x[element // 32 % 4] >> element % 32 & 1 else 1)


def test_the_law_is_in_the_two_highest_bits_of_a_seed():
    signs = [
        bool((drawn(kernels, seed, Span(0), 50).abs() == 1).all()) for seed in (5, 5 | 1 << 62, 3 << 62, 1 << 63, -1)
    ]
    assert signs == [False, True, False, False, False]
    assert LAWS == {"normal": 0, "rademacher": philox.SIGNS}


def test_the_extreme_words_give_finite_normals():
    extremes = torch.tensor([0, 1, 2, 3, 2**31 - 1, 2**31, 2**32 - 4, 2**32 - 1])
    x, y = torch.cartesian_prod(extremes, extremes).unbind(1)
    values = torch.cat(philox.box_muller(x, y))
    assert values.isfinite().all()
    assert 6.5 < values.abs().max() < 6.8


def test_numba_equals_the_reference(cpu):
    agree(cpu, sizes=(1, 1023, 1025, 4 * cpu.TILE + 3, 9 * cpu.TILE + 1))


@pytest.fixture(params=["one thread", "torch's threads", "a pool's threads"])
def threads(request, cpu, monkeypatch):
    """Whose threads kernels run on; "a pool's" are those of a torch without GNU's OpenMP."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if request.param == "one thread" else 3)
    if request.param == "a pool's threads":
        monkeypatch.setattr(cpu_threads, "_openmp", lambda: None)
    yield request.param
    torch.set_num_threads(before)


def test_threads_change_nothing(cpu, threads):
    assert same(drawn(cpu, 1, Span(1, 3), 300_001), drawn(philox, 1, Span(1, 3), 300_001))


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_in_a_piece_reaches_the_caller(cpu, threads, error):
    def fails(begin, end):
        if begin:
            raise error(begin, end)

    with pytest.raises(error):
        spread(fails, 100 * TILE)


KERNELS_AND_PRODUCTS = """
import multiprocessing, os, torch
from zobench.kernels.cpu_threads import TILE, spread
torch.set_num_threads(3)
ones = torch.ones(1 << 20)
(ones * 2).sum()
count = lambda: len(os.listdir("/proc/self/task"))
before = count()
spread(lambda begin, end: None, 100 * TILE)
print(count() - before)
child = multiprocessing.get_context("fork").Process(target=spread, args=(lambda begin, end: None, 100 * TILE))
child.start()
child.join(30)
print(child.exitcode)
child.kill()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="torch has GNU's OpenMP on Linux alone")
def test_kernels_run_on_torchs_threads_and_in_a_fork_on_others(cpu):
    done = subprocess.run([sys.executable, "-c", KERNELS_AND_PRODUCTS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "0"]


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kernel", [kernels, philox], ids=["numba", "torch"])
def test_16_bit_copies_of_float32_weights_are_the_float32_ones_rounded(kernel, dtype):
    master, span = torch.randn(5000, generator=torch.Generator().manual_seed(0)), Span(6, 3)
    wide, halved = [torch.empty(5000) for _ in range(2)], [torch.empty(5000, dtype=dtype) for _ in range(2)]
    weights = [master.clone(), master.clone()]
    for weight, (scratch, mirror) in zip(weights, (wide, halved), strict=True):
        kernel.advance(weight, span, UPDATES, base=None, scratch=scratch, mirror=mirror, seed=3, scale=0.5)
    assert same(weights[0], weights[1])
    assert same(halved[0], wide[0].to(dtype))
    assert same(halved[1], wide[1].to(dtype))


@pytest.mark.parametrize(
    ("span", "buffers", "message"),
    [
        (Span(0), [torch.zeros(4, 4).T], "contiguous"),
        (Span(0), [torch.zeros(4), torch.zeros(5)], "one size"),
        (Span(1 << 32), [torch.zeros(4)], "tensor_id"),
        (Span(0, rows=torch.tensor([1])), [torch.zeros(4)], "rows"),
    ],
)
def test_what_does_not_fit_is_refused(span, buffers, message):
    with pytest.raises(ValueError, match=message):
        kernels.advance(buffers[0], span, [], scratch=buffers[-1])


@pytest.mark.slow
@needs_triton
def test_triton_equals_the_reference_in_its_interpreter():
    run_interpreted(
        "from tests.support.kernels import SMALL, agree; from zobench.kernels import gpu; agree(gpu, **SMALL)"
    )


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

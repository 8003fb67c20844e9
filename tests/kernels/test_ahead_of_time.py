"""Every instance of the Triton kernels, compiled without a GPU: no spill, nothing fused or flushed, wide accesses.

``make test`` compiles each form in one dtype for one architecture, and the largest for all; with ZOBENCH_ALL_KERNELS
set, as in ``make nullcuda``, all for all. triton-viz 3.0 does not fit:
its sanitizer follows ``_flip``, but raises NotImplementedError at the draws and at ``_pack``.
"""

import dataclasses
import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

triton = pytest.importorskip("triton", reason="triton is not installed")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from zobench.kernels import gpu, gpu_base, scaled_gpu  # noqa: E402

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
ARCHITECTURES = (80, 86, 90, 100)
REGISTERS = {90: 72, 100: 72}
"""ptxas takes 70 of them for the largest float32 kernels: each draw has two laws, normal numbers and signs."""
POINTERS = {"fp32": "*fp32", "fp16": "*fp16", "bf16": "*i16"}
WORDS = ("tensor_id", "start0", "start1", "key0", "key1", "per_row", "pieces", "rounds", "count")
TENSORS = ("master", "base", "scratch", "mirror", "weights", "plain")
EIGHT_BITS = ("_pack", "_unpack")
NEEDED = {
    "_normals": (), "_advance": ("master",), "_flip": ("master", "scratch"), **dict.fromkeys(EIGHT_BITS, ("segments",)),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Instance:
    """One compilation of a kernel. ``present``: the optional tensors it is given."""

    kernel: str
    dtype: str
    present: tuple[str, ...] = ()
    aligned: int = 16  # what first element and size are multiples of; 4: the first element alone; 0: neither

    def __str__(self):
        parts = [self.kernel.strip("_"), self.dtype, *self.present]
        return " ".join([*parts, *{0: ["unaligned"], 1: ["odd rows"], 4: ["odd size"]}.get(self.aligned, [])])

    def source(self):
        """What Triton compiles: the types of the arguments, those known when compiling, those divisible by 16."""
        module = scaled_gpu if self.kernel in EIGHT_BITS else gpu
        kernel, pointer = getattr(module, self.kernel), POINTERS[self.dtype]
        types = {**dict.fromkeys((*TENSORS, "out"), pointer), "rows": "*i64", "segments": "*i64", "table": "*i32"}
        types |= {**dict.fromkeys(WORDS, "i32"), "width": "i64", "numel": "i64", "scale": "fp32"}
        types |= {"values": "*i8", "scales": "*fp32"}
        block = gpu.FLIP_BLOCK if self.kernel == "_flip" else module.BLOCK
        absent = {"base", "scratch", "mirror", "rows", "segments", "table"} - {*self.present, *NEEDED[self.kernel]}
        known = {"BLOCK": block, "ALIGNED": self.aligned, **dict.fromkeys(absent)}
        known = {name: value for name, value in known.items() if name in kernel.arg_names}
        divisible = {name for name, kind in types.items() if kind.startswith("*")}
        return ASTSource(
            fn=kernel,
            signature={name: "constexpr" if name in known else types[name] for name in kernel.arg_names},
            constexprs=known,
            attrs={
                (index,): [["tt.divisibility", 16]]
                for index, name in enumerate(kernel.arg_names)
                if name in divisible and name not in known
            },
        )

    def instructions(self):
        """More than this many say that something was unrolled or recomputed: measured, and a tenth."""
        draws = ("table" in self.present) + bool({"scratch", "mirror"} & {*self.present}) + (self.kernel == "_normals")
        least = {"_pack": 720, "_unpack": 330}.get(self.kernel, 0)
        return 255 + least + 600 * draws + 160 * (self.aligned < 16) + 60 * ("segments" in self.present)


ADVANCES = [
    Instance("_advance", dtype, present)
    for dtype in POINTERS
    for present in (
        ("scratch",), ("scratch", "mirror"), ("table",), ("table", "scratch"), ("table", "scratch", "mirror"),
        ("base",), ("base", "scratch"), ("table", "base", "scratch"), ("table", "scratch", "rows"),
        ("segments", "scratch"), ("segments", "table"), ("segments", "table", "scratch"),
        ("segments", "table", "base", "scratch"),
    )
]  # fmt: skip
INSTANCES = [
    *ADVANCES,
    *(Instance("_advance", dtype, (*form, "scratch"), aligned=0) for dtype in POINTERS for form in ((), ("segments",))),
    *(
        Instance("_advance", dtype, (*form, "table", "scratch"), aligned=4)
        for dtype in POINTERS
        for form in ((), ("segments",))
    ),
    *(Instance("_flip", dtype) for dtype in POINTERS),
    *(Instance(kernel, dtype, aligned=aligned) for kernel in EIGHT_BITS for dtype in POINTERS for aligned in (16, 1)),
    Instance("_normals", "fp32"),
    Instance("_normals", "fp32", ("rows",)),
    Instance("_normals", "fp32", aligned=0),
]
LARGEST = Instance("_advance", "fp16", ("segments", "table", "base", "scratch"))
FORMS = list(dict.fromkeys((instance.kernel, instance.present, instance.aligned) for instance in INSTANCES))
SOME = [
    instance
    for instance in INSTANCES
    if instance.kernel == "_normals"
    or list(POINTERS)[FORMS.index((instance.kernel, instance.present, instance.aligned)) % 3] == instance.dtype
]
"""Each form in one dtype, all dtypes in turn."""
ALL = [
    pytest.param(architecture, instance, id=f"sm_{architecture} {instance}")
    for architecture in ARCHITECTURES
    for instance in INSTANCES
    if (architecture == 90 and instance in SOME) or instance == LARGEST or os.environ.get("ZOBENCH_ALL_KERNELS")
]


def compiled(instance, architecture, options=gpu_base.OPTIONS):
    return triton.compile(instance.source(), target=GPUTarget("cuda", architecture, 32), options=dict(options))


def floating(kernel):
    """How often the kernel's PTX has each operation on floating-point numbers."""
    return Counter(
        re.findall(r"\b(?:add|sub|mul|fma|mad|div|sqrt|rcp|ex2|lg2|sin|cos)\.[\w.]*f(?:16|32)\b", kernel.asm["ptx"])
    )


def disassembled(kernel, folder):
    """(registers, bytes of local memory and stack, the machine's instructions)."""
    file = folder / "kernel.cubin"
    file.write_bytes(kernel.asm["cubin"])
    usage = subprocess.run([TOOLS / "cuobjdump", "-res-usage", file], capture_output=True, text=True, check=True).stdout
    registers, stack, local = map(int, re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", usage).groups())
    text = subprocess.run([TOOLS / "nvdisasm", "-c", file], capture_output=True, text=True, check=True).stdout
    names = re.findall(r"^\s+/\*[0-9a-f]{4}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", text, re.MULTILINE)
    return registers, stack + local, [name for name in names if name != "NOP"]


def fused(kernel):
    """Operations whose result is not the rounded product, sum or root of its operands."""
    return {name for name in floating(kernel) if name.startswith(("fma", "mad")) or ".rn" not in name or ".ftz" in name}


@pytest.mark.parametrize(("architecture", "instance"), ALL)
def test_a_kernel_compiles_to_what_the_design_says(architecture, instance, tmp_path):
    kernel = compiled(instance, architecture)
    registers, spilled, names = disassembled(kernel, tmp_path)
    assert spilled == 0, "it spills registers"
    assert registers <= REGISTERS.get(architecture, 64), "fewer than 896 threads fit on a multiprocessor"
    assert fused(kernel) == set(), "its bits are those of this compiler"
    assert len(names) <= instance.instructions()
    wide = {name for name in names if name.startswith(("LDG", "STG")) and ".128" in name}
    if instance.aligned == 16 or (instance.aligned and "segments" in instance.present):
        assert any(name.startswith("STG") for name in wide), "it writes in small pieces"
        assert instance.kernel == "_normals" or any(name.startswith("LDG") for name in wide), "it reads in small pieces"


def approximate(ptx):
    """The instructions of any kind that flush subnormals or approximate."""
    return set(re.findall(r"^\s+(?:@!?%p\d+ )?(\w+\.[\w.]*(?:ftz|approx|full)[\w.]*)", ptx, re.MULTILINE))


@pytest.mark.parametrize("dtype", POINTERS)
def test_eight_bits_are_divided_and_rounded_exactly(dtype):
    """What the interpreter's proof of e4m3 (test_scaled) rests on: compiled, no quotient is of another kind."""
    pack, unpack = (compiled(Instance(kernel, dtype), 90).asm["ptx"] for kernel in EIGHT_BITS)
    assert approximate(pack) | approximate(unpack) == set()
    assert set(re.findall(r"\bdiv\.[\w.]+", pack)) >= {"div.rn.f32"}
    assert not re.search(r"\b(?:div|rcp)\.[\w.]*f32", unpack)

"""A model larger than memory, from disk: OPT-6.7B from int4 in an eighth of fp32's bytes, and LOZO on it in fp32, which
writes nothing between two subspaces.

``python -m tests.benchmarks.large OPT-6.7B 16 5 integer`` and ``... low_rank`` print, of five steps of 16 tokens, the
bytes at rest, the bytes read and written by the steps, and a step's seconds beside its transfers alone and its compute
alone. The file lies in ``ZOBENCH_DISK_DIR`` (27 GB of it for OPT-6.7B in fp32) and is gone at the end.
"""

import sys

import pytest

from tests.support.large import measure


def main(name: str, tokens: int, steps: int, kind: str) -> None:
    """Prints what was measured, and its ratios."""
    with pytest.MonkeyPatch.context() as patch:
        told = measure(name, tokens, steps, kind, patch)
    print(f"{name}, {kind}, {tokens} tokens: filled in {told['filled']:.0f} s; loss {told['loss']:.4f}")
    print(f"at rest {told['at rest'] / 1e9:.3f} GB, 1/{told['fp32'] / told['at rest']:.2f} of fp32's blocks")
    print(f"read a step {told['read'] / 1e9:.3f} GB; written in {steps} steps {told['written']:.0f} bytes")
    print(f"the first {steps} steps: median {told['first']:.3f} s; then in turn, {steps} times:")
    print(
        f"step {told['step']:.3f} s, transfers alone {told['transfers']:.3f} s, compute alone {told['compute']:.3f} s; "
        f"step / larger {told['ratio']:.3f} (goal 1.1)"
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])

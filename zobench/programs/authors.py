"""The authors' own programs that can run a cell: which they are, and what each of them can do. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zobench import models
from zobench.programs import clones
from zobench.programs.clones import Clone
from zobench.runspec import DECLARED, RunSpec

TAKEN = frozenset({
    "model", "name", "model_path", "config_hash", "weights", "weights_path", "weights_hash", "tie_embeddings", "dtype",
    "batch_size", "seq_len", "steps", "warmup", "seed", "lr", "eps", "device", "tier", "program", "data",
})  # fmt: skip
"""Fields that every one of them takes; in all others a spec must have the usual value, or what a program needs.
None takes data=ragged: the first token of a padded row is predicted from padding, whose output differs among
transformers' versions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Authors:
    """An authors' program, and the cells that it can run. ``repository``: where it is published; ``file``: what of a
    clone it is known by; ``takes``: fields beside :data:`TAKEN`; ``needs``: values that others must have; ``devices``:
    kinds that it runs on; ``model_types``: transformers' names of the architectures that its adapter was written for.
    ``other_order``: whether it draws z for the parameters in another order than MeZO, so that equal seeds give other
    directions."""

    name: str
    repository: str
    file: str
    takes: frozenset[str] = frozenset()
    needs: Mapping[str, Any] = field(default_factory=dict)
    devices: tuple[str, ...] = ("cpu", "cuda")
    model_types: tuple[str, ...] = ("opt",)
    other_order: bool = False

    def check(self, spec: RunSpec) -> None:
        """Raises ``ValueError``, one line, for the first thing that ``spec`` asks for and the program has not."""
        self._expect("weights", spec.weights in ("random", "pretrained"), "random or pretrained", spec)
        self._expect("data", spec.data != "ragged", "random", spec)
        for name, declared in DECLARED.items():
            if name not in TAKEN | self.takes:
                wanted = self.needs.get(name, declared.default)
                self._expect(name, getattr(spec, name) == wanted, declared.write(wanted), spec)
        kinds = " or ".join(self.devices)
        self._expect("device", spec.device.partition(":")[0] in (*self.devices, "auto"), kinds, spec)
        if (kind := models.of(spec).model_type) not in self.model_types:
            types = " or ".join(self.model_types)
            raise ValueError(
                f"`program={self.name}` needs a model of type {types}, but {spec.model} is of type {kind}; "
                "use program=zobench"
            )

    def _expect(self, name: str, met: bool, wanted: str, spec: RunSpec) -> None:
        if not met:
            got = DECLARED[name].write(getattr(spec, name))
            raise ValueError(
                f"`program={self.name}` needs {name}={wanted}, but got {name}={got}; {self.repository} has nothing "
                "else that zobench knows how to call"
            )


AUTHORS = {
    program.name: program
    for program in (
        Authors(
            name="mezo", repository="princeton-nlp/MeZO", file="large_models/trainer.py",
            takes=frozenset({"weight_decay"}),
        ),
        Authors(name="zo-llm", repository="ZO-Bench/ZO-LLM", file="zo-bench/trainer.py"),
        Authors(
            name="zo2", repository="liangyuwang/zo2", file="zo2/__init__.py", devices=("cuda",),
            takes=frozenset({"weight_decay", "overlap"}), needs={"engine": "offload"}, other_order=True,
        ),
    )
}  # fmt: skip


def check(spec: RunSpec) -> None:
    """Raises ``ValueError``, one line, unless ``spec.program`` can run ``spec`` and is here, as it was added."""
    AUTHORS[spec.program].check(spec)
    clones.checked(spec.program)


def origin(name: str) -> str:
    """Returns the origin of the program ``name``, as its results say: its commit and versions as it was added; "" if it
    was not."""
    clone = clones.load().get(name)
    return "" if clone is None else described(clone)


def described(clone: Clone) -> str:
    """``mezo 552cb1b, torch 2.1.0, transformers 4.28.1, Python 3.9.18``"""
    versions = clone.versions
    packages = f"torch {versions['torch']}, transformers {versions['transformers']}, Python {versions['python']}"
    return f"{clone.name} {clone.commit}, {packages}"

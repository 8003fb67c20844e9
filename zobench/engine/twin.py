"""Right or refused: before an engine takes a model over, what it would compute on a small twin of the model is compared
with what transformers computes there, its loss and its losses at perturbed weights."""

from __future__ import annotations

import copy
import functools
import json
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

from zobench.data.batch import IGNORED, Batch
from zobench.engine.base import BASE, EngineConfig, Point
from zobench.engine.passes.attention import each_alone
from zobench.engine.passes.drive import outputs
from zobench.engine.passes.fold import Marks, observe
from zobench.engine.passes.loss import next_tokens
from zobench.engine.shrink import shrunk, special_tokens
from zobench.models import blocks as find_blocks
from zobench.models import is_masked
from zobench.models.families import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zobench.engine.weights.blocks import Unit

TOKENS, ROWS = 5, 2
"""The size of a batch that the twin is called on."""
SEED, EPS = 11, 1e-2
CLOSE, CLOSE16 = 2e-5, 1e-2
"""How far two losses of about the same size may be apart in float32 and in 16 bits: by their rounding."""
LARGEST = 100_000_000
"""Parameters of a twin: more would take longer than a user waits for an answer."""

_VERDICTS: dict[tuple[object, ...], Marks | str] = {}


class _TwinEngine(Protocol):
    """An engine over a twin."""

    arithmetic: Any

    @property
    def units(self) -> Sequence[Unit]: ...
    def probe(self, batch: Batch, points: Sequence[Point]) -> list[float]: ...
    def close(self) -> None: ...


Make = Callable[[nn.Module, EngineConfig, Marks], _TwinEngine]


def judge(model: nn.Module, config: EngineConfig, make: Make, directions: Hashable = None) -> Marks:
    """How the arguments of the model's modules follow the batch, if an engine that ``make`` builds over a twin of it
    computes what transformers does; else a ``ValueError`` of one line that says what the model does.

    The answer is kept for this process, by the model's class, the switches of its configuration and those of ``config``
    that choose how losses are computed, with the ``directions`` of its engines. Of the registered families nothing is
    asked: tests hold them, bit for bit.
    """
    find_blocks(model)  # refuses a model without any
    if "_loss_function" in vars(model):  # which no twin of its class has
        raise ValueError(
            f"a model must have the loss of its class, but this {type(model).__name__} was given its own "
            "(loss_function), which an engine would not call; leave it out"
        )
    if is_held(model):
        return {}
    if getattr(model.config, "output_router_logits", False):
        warnings.warn(
            f"the loss of {type(model).__name__} adds a router loss (output_router_logits=True), but an engine trains "
            "without it",
            stacklevel=3,
        )
    dtype = next(model.parameters()).dtype
    switches = json.dumps(_switches(model), sort_keys=True, default=str)
    kernels = tuple(each_alone(config.attention))
    key = (type(model), switches, config.noise, config.granularity, kernels, dtype, directions)
    if key not in _VERDICTS:
        try:
            _VERDICTS[key] = _judged(model, config, make, dtype)
        except ValueError as error:
            _VERDICTS[key] = str(error)
    verdict = _VERDICTS[key]
    if isinstance(verdict, str):
        raise ValueError(verdict)
    return verdict


def is_held(model: nn.Module) -> bool:
    """Whether a model is the one that a registered family's tests compare with plain loops."""
    config: Any = model.config
    family = FAMILIES.get(config.model_type)
    if family is None:
        return False
    mapping: Any = MODEL_FOR_MASKED_LM_MAPPING if family.masked else MODEL_FOR_CAUSAL_LM_MAPPING
    return type(config) in mapping and type(model) is mapping[type(config)]


def _judged(model: nn.Module, config: EngineConfig, make: Make, dtype: torch.dtype) -> Marks:
    twin, batches = _runnable(model)
    marks = _observed(twin, batches)
    narrow = dtype in (torch.float16, torch.bfloat16)
    with _one_line(model, marks):
        for kernels in each_alone(config.attention):
            settings = EngineConfig(
                noise=config.noise, granularity=config.granularity, attention=kernels, tier="pageable", slots=2
            )
            _compare(copy.deepcopy(twin), batches, make, settings, marks, CLOSE)
            if narrow:
                low = _built(type(model), twin.config, dtype)
                _compare(low, batches, make, settings, marks, CLOSE16)
    return marks


def _switches(model: nn.Module) -> dict[str, Any]:
    """The model's configuration but for its sizes, where it can be shrunk."""
    config: Any = model.config
    try:
        return {**shrunk(config).to_dict(), "_name_or_path": None}
    except (ValueError, TypeError, KeyError, AttributeError):  # of the configuration's own checks
        return dict(config.to_dict())


# --- the twin and its batches ----------------------------------------------------------------------------------------


def _runnable(model: nn.Module) -> tuple[nn.Module, list[Batch]]:
    """The smallest twin that transformers can call, and what it is called on. Raises ``ValueError`` if there is none or
    its forward writes its weights."""
    error: Exception | None = None
    whole: Any = model.config
    attempts: tuple[Callable[[], Any], ...] = (
        lambda: shrunk(whole), lambda: shrunk(whole, heads=4), lambda: shrunk(whole, layers=False), lambda: whole,
    )  # fmt: skip
    for attempt in attempts:
        try:
            twin = _built(type(model), attempt(), torch.float32)
            batches, before = _batches(twin), _versions(twin)
            for batch in batches:
                model_loss(twin, batch)
        except Exception as raised:  # whatever a model's own code raises on a configuration that nobody has used before
            error = error or raised
        else:
            if changed := [name for name, version in _versions(twin).items() if version != before[name]]:
                raise ValueError(
                    f"a model's forward must leave its weights alone, but {type(twin).__name__}'s writes {changed[0]}; "
                    "use another model"
                )
            return twin, batches
    raise ValueError(
        f"a model must be callable on tokens, with labels, but a small {type(model).__name__} is not "
        f"({_first_line(error)}); use another model"
    ) from error


def _built(kind: type[nn.Module], config: Any, dtype: torch.dtype) -> nn.Module:
    """A model of ``kind``, none of whose parameters is zero or one, so that each has its part in the loss."""
    config = copy.deepcopy(config)
    for part in (config, *(getattr(config, name) for name in getattr(config, "sub_configs", {}))):
        if hasattr(part, "output_router_logits"):
            part.output_router_logits = False  # an engine's loss has no such term
    with torch.device("meta"):
        size = sum(tensor.numel() for tensor in kind._from_config(copy.deepcopy(config)).parameters())  # type: ignore[attr-defined]
    if size > LARGEST:
        raise ValueError(f"it has {size} parameters, more than {LARGEST}")
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(SEED)
        twin: nn.Module = kind._from_config(config, dtype=dtype).eval()  # type: ignore[attr-defined]
        with torch.no_grad():
            for tensor in twin.parameters():
                tensor.add_(torch.randn_like(tensor), alpha=0.02)
    return twin


def _batches(twin: nn.Module) -> list[Batch]:
    """One without a mask, and one whose first row is padded: at its end for a masked model, else at its beginning."""
    config: Any = twin.config
    text = config.get_text_config()
    special = special_tokens(text)
    table: Any = twin.get_input_embeddings()  # type: ignore[operator]
    count = table.weight.shape[0]
    words = [token for token in range(min(count, text.vocab_size)) if token not in special]
    ids = torch.tensor([words[(7 * n * n + 3 * n + 5) % len(words)] for n in range(3 * TOKENS)]).view(3, TOKENS)
    labels = ids.roll(1, 0) if is_masked(twin) else ids.clone()
    labels[:, 2] = IGNORED
    padded, mask, answers = ids.clone(), torch.ones_like(ids), labels.clone()
    away = slice(TOKENS - 2, None) if is_masked(twin) else slice(None, 2)
    pad = text.pad_token_id if isinstance(getattr(text, "pad_token_id", None), int) else words[0]
    padded[0, away], mask[0, away], answers[0, away] = pad, 0, IGNORED
    return [Batch(ids, labels), Batch(padded, answers, mask)]


def _versions(twin: nn.Module) -> dict[str, int]:
    """How often each parameter has been written, and each buffer of a block."""
    inside = {name: buffer for block in find_blocks(twin) for name, buffer in block.named_buffers()}
    return {name: tensor._version for name, tensor in {**dict(twin.named_parameters()), **inside}.items()}


@torch.no_grad()
def model_loss(model: nn.Module, batch: Batch) -> float:
    """Returns the loss by transformers' own forward."""
    return float(_outputs(model, batch, labels=batch.labels)["loss"])


@torch.no_grad()
def as_taken(model: nn.Module, batch: Batch) -> Batch:
    """``batch`` with the labels that the model's own forward takes for the loss of the next token: shifted ones, where
    its loss shifts none, as that of BART's decoder."""
    if is_masked(model) or not _near(model_loss(model, batch), _cross_entropy(model, batch, batch.labels), CLOSE):
        return batch
    return replace(batch, labels=next_tokens(batch.labels).view_as(batch.labels))


def _cross_entropy(model: nn.Module, batch: Batch, targets: Tensor) -> float:
    """The mean cross-entropy of the model's own logits (rows, tokens, vocabulary) of ``targets`` (rows, tokens)."""
    logits = _outputs(model, batch)["logits"].float()
    return float(functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED))


def _outputs(model: nn.Module, batch: Batch, **inputs: Any) -> Any:
    return outputs(model, input_ids=batch.input_ids, attention_mask=batch.attention_mask, **inputs)


# --- what is compared ------------------------------------------------------------------------------------------------


def _observed(twin: nn.Module, batches: Sequence[Batch]) -> Marks:
    """How arguments follow the batch. Raises ``ValueError`` if a forward is not a function."""
    blocks = list(find_blocks(twin))
    losses = [[model_loss(twin, batch) for batch in batches] for _ in range(2)]
    if losses[0] != losses[1]:
        raise ValueError(
            f"a model's loss must be a function of its weights, but {type(twin).__name__}'s differs from call to call; "
            "use another model"
        )

    def called(batch: Batch, rows: int) -> object:
        mask = batch.attention_mask
        return outputs(twin, input_ids=batch.input_ids[:rows], attention_mask=None if mask is None else mask[:rows])

    return observe(twin, blocks, [functools.partial(called, batch) for batch in batches])


def _compare(
    twin: nn.Module, batches: Sequence[Batch], make: Make, config: EngineConfig, marks: Marks, close: float
) -> None:
    """Raises ``ValueError`` unless an engine's losses at W, W + eps z and W - eps z are the model's own."""
    plain, points = copy.deepcopy(twin), [BASE, Point(SEED, EPS), Point(SEED, -EPS)]
    comparable = [as_taken(plain, batch) for batch in batches]
    engine = make(twin, config, marks)
    try:
        z = _directions(engine, plain)
        engine_losses = [engine.probe(batch, points) for batch in batches]
        for number, batch in enumerate(comparable):
            hf_loss = model_loss(plain, batch)
            if not _near(engine_losses[number][0], hf_loss, close):
                raise ValueError(_reason(plain, batch, hf_loss, engine_losses[number][0]))
        for number, point in enumerate(points[1:], start=1):
            _move(plain, z, point.scale)
            for losses, batch in zip(engine_losses, comparable, strict=True):
                if not _near(losses[number], hf_loss := model_loss(plain, batch), close):
                    raise ValueError(
                        f"losses at perturbed weights must be those of {type(twin).__name__} itself, but "
                        f"{_bypassed(plain, batch)}an engine's is {losses[number]:.6f} and its own {hf_loss:.6f}; use "
                        "another model"
                    )
            _move(plain, z, -point.scale)
    finally:
        engine.close()


def _bypassed(model: nn.Module, batch: Batch) -> str:
    """The likely cause of such a refusal, or "": a module whose weights count although its forward is never called, so
    that no engine can put a point's weights there."""
    owners = {module: name for name, module in model.named_modules() if any(True for _ in module.parameters(False))}
    called: set[nn.Module] = set()
    hooks = [module.register_forward_pre_hook(lambda module, _: called.add(module)) for module in owners]
    before = model_loss(model, batch)
    for hook in hooks:
        hook.remove()
    for module, name in owners.items():
        if module not in called and _counts(model, module, batch, before):
            return f"its forward reads the weights of {name} without calling it: "
    return ""


@torch.no_grad()
def _counts(model: nn.Module, module: nn.Module, batch: Batch, before: float) -> bool:
    """Whether the loss, ``before``, changes with the module's own weights."""
    kept = [(tensor, tensor.clone()) for tensor in module.parameters(recurse=False)]
    for tensor, _ in kept:
        tensor.mul_(2)
    after = model_loss(model, batch)
    for tensor, value in kept:
        tensor.copy_(value)
    return after != before


def _directions(engine: _TwinEngine, plain: nn.Module) -> dict[str, Tensor]:
    """z(SEED) of each parameter, from the engine's own noise."""
    whole = {name: torch.zeros_like(tensor) for name, tensor in plain.named_parameters()}
    with torch.no_grad():
        for unit in engine.units:
            parts = [torch.empty(item.shape, dtype=item.dtype) for item in unit.trainable]
            engine.arithmetic.direction(SEED, unit, parts)
            for item, part in zip(unit.trainable, parts, strict=True):
                whole[item.name][item.first : item.first + len(part)] = part
    return whole


@torch.no_grad()
def _move(model: nn.Module, z: dict[str, Tensor], scale: float) -> None:
    for name, tensor in model.named_parameters():
        tensor.add_(z[name], alpha=scale)


def _near(first: float, second: float, close: float) -> bool:
    return abs(first - second) <= close * max(1.0, abs(second))


@torch.no_grad()
def _reason(model: nn.Module, batch: Batch, hf_loss: float, engine_loss: float) -> str:
    """Returns one line that says what the model does differently."""
    name = type(model).__name__
    same = _cross_entropy(model, batch, batch.labels)
    following = _cross_entropy(model, batch, next_tokens(batch.labels))
    if not _near(hf_loss, same if is_masked(model) else following, CLOSE) and not _near(hf_loss, same, CLOSE):
        fault = "is no mean cross-entropy of its logits"
        if _near(hf_loss, following, CLOSE):
            fault = "is that of the next token"
        return f"a model's loss must be the mean cross-entropy of its targets, but {name}'s {fault}; use another model"
    context = "a padded batch" if batch.attention_mask is not None else "its logits"
    return (
        f"an engine must give the model's own loss, but of {name} it gives {engine_loss:.6f} and not {hf_loss:.6f}, "
        f"because of {context}; use another model"
    )


@contextmanager
def _one_line(model: nn.Module, marks: Marks) -> Iterator[None]:
    """Inside, whatever a model's own code raises, driven as it was not written for, becomes a refusal. The likely cause
    is an embedding that takes no rows of the batch, of relative positions: at several points it has several outputs."""
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        alone = [name for name, follows in marks.items() if follows.nothing]
        raise ValueError(
            f"a model must run on several copies of a batch, module by module, but {type(model).__name__} "
            + (
                f"reshapes the output of {alone[0]}, which is one for all rows and another at every point"
                if alone
                else f"does not ({_first_line(error)})"
            )
            + "; use another model"
        ) from error


def _first_line(error: Exception | None) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__

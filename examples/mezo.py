"""MeZO in one file: tunes a causal language model with two forward passes a step, and nothing from zobench.

    python mezo.py FOLDER TEXT.txt --steps 1000     # a model's folder, a text to learn
    python mezo.py --steps 20                       # a tiny OPT with random weights, random tokens

A step of MeZO (Malladi et al. 2023, algorithm 1) draws z ~ N(0, 1) for every weight from one seed and moves them:

    W + eps z  ->  loss L+          W - eps z  ->  loss L-          g = (L+ - L-) / (2 eps)

and then W <- W - lr g z. z is never stored: the same seed gives the same z again, so memory is that of inference. This
is the computation that every engine of zobench must repeat bit for bit (tests/test_examples.py); ``zo2.py`` streams it.
"""

import argparse
from collections.abc import Callable, Iterator

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, OPTConfig, OPTForCausalLM


def normals(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """z of one weight tensor: the next numbers of the generator, in the weight's shape and dtype."""
    return torch.normal(mean=0, std=1, size=like.shape, dtype=like.dtype, device=like.device, generator=generator)


def noise_of(seed: int, device: torch.device) -> torch.Generator:
    """The stream from which the z of all weights are drawn, one after another in ``named_parameters()`` order."""
    return torch.Generator(device).manual_seed(seed)


def perturb(model: torch.nn.Module, seed: int, scale: float, eps: float) -> None:
    """W <- W + scale eps z(seed), in place."""
    generator = noise_of(seed, next(model.parameters()).device)
    for weight in model.parameters():
        weight.add_(scale * normals(weight, generator) * eps)


def update(model: torch.nn.Module, seed: int, g: float, lr: float) -> None:
    """W <- W - lr g z(seed), in place."""
    generator = noise_of(seed, next(model.parameters()).device)
    for weight in model.parameters():
        weight.sub_(lr * (g * normals(weight, generator)))


def loss_of(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy of each next token of ``ids``, int64 of shape (rows, tokens)."""
    return model(input_ids=ids, labels=ids).loss


@torch.inference_mode()
def step(model: torch.nn.Module, ids: torch.Tensor, seed: int, *, eps: float, lr: float) -> tuple[float, float]:
    """(the mean of both losses, g) of one step, after which the model has the new weights.

    As in MeZO's program the weights wander from W to W + eps z, W - eps z and back, and may differ from W in their last
    bits afterwards: who compares bit for bit must do the same.
    """
    perturb(model, seed, 1, eps)
    plus = loss_of(model, ids)
    perturb(model, seed, -2, eps)
    minus = loss_of(model, ids)
    perturb(model, seed, 1, eps)
    g = ((plus.float() - minus.float()) / (2 * eps)).item()
    update(model, seed, g, lr)
    return (plus.item() + minus.item()) / 2, g


def seeds(seed: int) -> Iterator[int]:
    """The seed of each step's z."""
    generator = np.random.default_rng(seed)
    while True:
        yield int(generator.integers(10**9))


def rows_of(text: torch.Tensor, rows: int, tokens: int, seed: int) -> Iterator[torch.Tensor]:
    """Batches (rows, tokens) cut from random places of ``text``, int64 of shape (n,)."""
    generator = np.random.default_rng(seed)
    while True:
        begins = generator.integers(0, len(text) - tokens + 1, size=rows)
        yield torch.stack([text[begin : begin + tokens] for begin in begins])


def load(folder: str | None, file: str | None) -> tuple[torch.nn.Module, torch.Tensor]:
    """(a model in evaluation mode, so without dropout; the ids of the text)."""
    if folder is None:
        torch.manual_seed(0)
        config = OPTConfig(
            vocab_size=512, hidden_size=64, word_embed_proj_dim=64, num_hidden_layers=3, ffn_dim=256,
            num_attention_heads=4, max_position_embeddings=128,
        )  # fmt: skip
        return OPTForCausalLM(config).eval(), torch.arange(4096) * 7 % 512
    with open(file, encoding="utf-8") as text:
        ids = AutoTokenizer.from_pretrained(folder)(text.read(), return_tensors="pt").input_ids[0]
    return AutoModelForCausalLM.from_pretrained(folder).eval(), ids


def asked(description: str) -> argparse.Namespace:
    """What the command line asks for; ``zo2.py`` takes the same."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", nargs="?", help="a model saved by transformers; without it a tiny OPT")
    parser.add_argument("text", nargs="?", help="a file to learn, UTF-8; goes with the folder")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--eps", type=float, default=1e-3)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="where the tuned model is saved")
    options = parser.parse_args()
    if (options.folder is None) != (options.text is None):
        parser.error("a model's folder and a text go together: give both or neither")
    return options


def tune(
    options: argparse.Namespace, text: torch.Tensor, take: Callable[[torch.Tensor, int], tuple[float, float]]
) -> None:
    """Takes ``options.steps`` steps on batches of ``text`` by ``take``, of (ids, seed), and prints some of them."""
    batches = rows_of(text, options.rows, options.tokens, options.seed)
    for number, ids, seed in zip(range(1, options.steps + 1), batches, seeds(options.seed), strict=False):
        loss, g = take(ids, seed)
        if number == 1 or number % 10 == 0 or number == options.steps:
            print(f"step {number}: loss {loss:.4f}, g {g:+.3f}", flush=True)


def main() -> None:
    options = asked(__doc__.splitlines()[0])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, text = load(options.folder, options.text)
    model.to(device)
    tune(options, text, lambda ids, seed: step(model, ids.to(device), seed, eps=options.eps, lr=options.lr))
    if options.out:
        model.save_pretrained(options.out)


if __name__ == "__main__":
    main()

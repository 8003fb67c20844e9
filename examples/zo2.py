"""ZO2 in one file: MeZO's very steps, while the blocks of an OPT live in host memory and stream through the device.

    python zo2.py FOLDER TEXT.txt --steps 1000      # as mezo.py; on a GPU where there is one
    python zo2.py --steps 20

Only the embeddings, the last norm and ``SLOTS`` blocks are on the device. Three lanes work at a time (ZO2, section 5):

    upload    | block 1 | block 2 | block 3 | ...
    compute   |         | block 1 | block 2 | block 3 | ...
    offload   |         |         | block 1 | block 2 | ...

Each block comes to the device once a step. There it first gets the update of the step before, whose g was not known
when it was last here (the fused update, section 5.4), is then moved to W + eps z and to W - eps z, computes the hidden
states of both passes, and goes home. z comes again from the state of the random stream at the block (section 5.1).
Losses and weights equal those of ``mezo.py`` with ``==`` (tests/test_examples.py), on a CPU.
Nobody has run its CUDA streams on a GPU yet.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from mezo import asked, load, noise_of, normals, tune
from torch.func import functional_call
from torch.nn import functional

SLOTS = 3
"""Blocks that have room on the device: one arrives, one computes, one leaves."""


class Lane:
    """Work that runs in order, beside other lanes: a stream of CUDA, or a thread on a CPU.

    ``run`` begins a piece of work when the ``after`` pieces of other lanes are done, and returns a ticket for others to
    wait for.
    """

    def __init__(self, stream: "torch.cuda.Stream | None") -> None:
        self.stream = stream
        self.thread = ThreadPoolExecutor(1) if stream is None else None

    def run(self, work: Callable[[], None], after: list) -> object:
        if self.stream is None:

            def wait_and_work() -> None:
                for ticket in after:
                    ticket.result()
                with torch.inference_mode():
                    work()

            return self.thread.submit(wait_and_work)
        with torch.cuda.stream(self.stream):
            for event in after:
                self.stream.wait_event(event)
            work()
            return self.stream.record_event()


class Block:
    """A block's weights at home, in one piece of (pinned) host memory, and as named views of a piece on the device."""

    def __init__(self, layer: torch.nn.Module, device: torch.device) -> None:
        self.shapes = {name: weight.shape for name, weight in layer.named_parameters()}
        self.home = torch.cat([weight.detach().flatten() for weight in layer.parameters()])
        if device.type == "cuda":
            self.home = self.home.pin_memory()
        self.noise_state: torch.Tensor | None = None
        """Where the random stream stood at this block in the last step."""

    def views(self, slot: torch.Tensor) -> dict[str, torch.Tensor]:
        pieces = slot[: len(self.home)].split([shape.numel() for shape in self.shapes.values()])
        return {name: piece.view(shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)}


class ZO2:
    """MeZO's steps on an OPT whose blocks are streamed; the model has norms before its layers and no projections."""

    def __init__(self, model: torch.nn.Module, device: torch.device, *, eps: float, lr: float) -> None:
        self.config, self.device, self.eps, self.lr = model.config, device, eps, lr
        decoder = model.model.decoder
        self.blocks = [Block(layer, device) for layer in decoder.layers]
        decoder.layers.to("meta")  # their weights are at home in the blocks
        self.template = decoder.layers[0]  # the code of a block, which computes with the weights of a slot
        # The weights that stay, which come first in the model's order, so the stream of z begins with them.
        self.resident = {
            "tokens": decoder.embed_tokens.weight.detach().to(device),
            "positions": decoder.embed_positions.weight.detach().to(device),
            "norm": decoder.final_layer_norm.weight.detach().to(device),
            "norm_bias": decoder.final_layer_norm.bias.detach().to(device),
        }
        size = len(self.blocks[0].home)
        self.slots = [torch.empty(size, dtype=self.blocks[0].home.dtype, device=device) for _ in range(SLOTS)]
        streams = [None] * 3
        if device.type == "cuda":
            streams = [torch.cuda.Stream(device), torch.cuda.current_stream(device), torch.cuda.Stream(device)]
        self.upload, self.compute, self.offload = (Lane(stream) for stream in streams)
        self.pending: float | None = None  # g of the step before, which the blocks have not seen

    def embed(self, weights: dict[str, torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
        """Hidden states (rows, tokens, width); OPT counts positions from 2."""
        positions = torch.arange(ids.shape[1], device=ids.device) + 2
        return functional.embedding(ids, weights["tokens"]) + functional.embedding(positions, weights["positions"])

    def loss(self, weights: dict[str, torch.Tensor], hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """The mean cross-entropy of each next token; the head is the embedding of tokens (tied)."""
        hidden = functional.layer_norm(hidden, hidden.shape[-1:], weights["norm"], weights["norm_bias"])
        logits = functional.linear(hidden, weights["tokens"]).float()
        targets = functional.pad(ids[:, 1:], (0, 1), value=-100)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def apply_pending(self, weights: list[torch.Tensor], state: torch.Tensor) -> None:
        """W <- W - lr g z of the step before, z from the state that the stream then had at these weights."""
        generator = torch.Generator(self.device)
        generator.set_state(state)
        for weight in weights:
            weight.sub_(self.lr * (self.pending * normals(weight, generator)))

    def stream(self, visit: Callable[[Block, dict[str, torch.Tensor]], None]) -> None:
        """Brings every block to a slot, visits it there and takes it home: uploads, visits and offloads overlap."""
        left: list[list] = [[] for _ in range(SLOTS)]  # of each slot, the offload that its next upload waits for
        for number, block in enumerate(self.blocks):
            slot = self.slots[number % SLOTS][: len(block.home)]
            up = self.upload.run(lambda b=block, s=slot: s.copy_(b.home, non_blocking=True), left[number % SLOTS])
            done = self.compute.run(lambda b=block, s=slot: visit(b, b.views(s)), [up])
            down = self.offload.run(lambda b=block, s=slot: b.home.copy_(s, non_blocking=True), [done])
            left[number % SLOTS] = [down]
        for tickets in left:
            for ticket in tickets:
                ticket.result() if self.upload.stream is None else ticket.synchronize()

    @torch.inference_mode()
    def step(self, ids: torch.Tensor, seed: int) -> tuple[float, float]:
        """(the mean of both losses, g) of one step; the blocks get its update when they next come to the device."""
        generator, eps = noise_of(seed, self.device), self.eps
        first_state = generator.get_state()
        plus, minus = {}, {}
        for name, weight in self.resident.items():
            z = normals(weight, generator)
            plus[name] = weight + 1 * z * eps
            minus[name] = plus[name] + -2 * z * eps
            self.resident[name] = minus[name] + 1 * z * eps
        hidden = [self.embed(plus, ids), self.embed(minus, ids)]

        def visit(block: Block, weights: dict[str, torch.Tensor]) -> None:
            if self.pending is not None:
                self.apply_pending(list(weights.values()), block.noise_state)
            block.noise_state = generator.get_state()
            z = {name: normals(weight, generator) for name, weight in weights.items()}
            for which, scale in enumerate((1, -2)):
                for name, weight in weights.items():
                    weight.add_(scale * z[name] * eps)
                hidden[which] = functional_call(self.template, weights, (hidden[which],))
            for name, weight in weights.items():
                weight.add_(1 * z[name] * eps)

        self.stream(visit)
        losses = [self.loss(weights, states, ids) for weights, states in zip((plus, minus), hidden, strict=True)]
        g = ((losses[0] - losses[1]) / (2 * eps)).item()
        self.pending = g
        self.apply_pending(list(self.resident.values()), first_state)
        return (losses[0].item() + losses[1].item()) / 2, g

    @torch.inference_mode()
    def finish(self, model: torch.nn.Module) -> None:
        """Brings the blocks' last update, which still waits, and puts all weights into ``model``."""
        if self.pending is not None:
            self.stream(lambda block, weights: self.apply_pending(list(weights.values()), block.noise_state))
            self.pending = None
        decoder = model.model.decoder
        for layer, block in zip(decoder.layers, self.blocks, strict=True):
            layer.to_empty(device="cpu").load_state_dict(block.views(block.home))
        decoder.embed_tokens.weight.copy_(self.resident["tokens"])
        decoder.embed_positions.weight.copy_(self.resident["positions"])
        decoder.final_layer_norm.weight.copy_(self.resident["norm"])
        decoder.final_layer_norm.bias.copy_(self.resident["norm_bias"])


def main() -> None:
    options = asked(__doc__.splitlines()[0])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, text = load(options.folder, options.text)
    tuner = ZO2(model, device, eps=options.eps, lr=options.lr)
    tune(options, text, lambda ids, seed: tuner.step(ids.to(device), seed))
    if options.out:
        tuner.finish(model)
        model.save_pretrained(options.out)


if __name__ == "__main__":
    main()

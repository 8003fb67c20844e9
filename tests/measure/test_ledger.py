"""The ledger against sums by hand, against PyTorch's own allocator, and against the memory that a run really takes."""

import itertools
import threading
from pathlib import Path

import pytest
import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from zobench import Engine, EngineConfig, RunSpec, models
from zobench.data.batch import stream
from zobench.engine import assemble, build
from zobench.engine.passes.loss import log_probabilities, mean_loss, next_tokens
from zobench.engine.transfers import pipeline
from zobench.execute.process import run_in_process
from zobench.machine.directio import aligned
from zobench.measure.ledger import Ledger
from zobench.methods import ZOSGD
from zobench.models.weights import RandomWeights, materialise

MIB = 2**20


def trace_peak(run, device_type):
    """The peak of what ``run`` makes on a kind of device."""
    with Ledger(device_type) as ledger:
        run()
    return ledger.peak


def mib(device, count=1):
    return torch.empty(count * MIB, dtype=torch.uint8, device=device)


@pytest.fixture(params=["cpu", "meta"])
def device(request):
    return request.param


@pytest.fixture(params=[True, False], ids=["inference", "plain"])
def mode(request):
    with torch.inference_mode(request.param):
        yield


def test_counts_by_hand(device, mode):
    with Ledger(device) as ledger:
        a = mib(device)
        b = a + a
        assert (ledger.live, ledger.peak) == (2 * MIB, 2 * MIB)
        del a
        view = b[10:].view(-1)
        view.add_(1)
        assert ledger.live == MIB  # views and in-place operators make nothing
        torch.add(b, b, out=b)
        assert ledger.live == MIB
        del b
        assert ledger.live == MIB  # the view keeps all of it
        joined = torch.cat([view, view])
        del view
        assert (ledger.live, ledger.peak) == (2 * MIB - 10 + MIB - 10 - MIB, 3 * MIB - 20)
        del joined
        assert ledger.live == 0


def test_storages_that_grow(device, mode):
    with Ledger(device) as ledger:
        out = torch.empty(0, dtype=torch.uint8, device=device)
        a = mib(device)
        torch.add(a, a, out=out)
        assert ledger.live == 2 * MIB
        out.resize_(3 * MIB)
        assert (ledger.live, ledger.peak) == (4 * MIB, 4 * MIB)


def test_a_storage_that_dies_inside_a_composite_operator_is_in_the_peak(device, mode):
    logits, labels = torch.zeros(256, 1024, device=device), torch.zeros(256, dtype=torch.int64, device=device)
    with Ledger(device) as ledger:
        loss = functional.cross_entropy(logits, labels)
        assert ledger.live == loss.nbytes
    assert MIB < ledger.peak < 2 * MIB  # with the logarithms, which are gone


def test_an_error_leaves_the_ledger_right(device):
    a, ledger = torch.empty(3, 4, device=device), Ledger(device)
    with ledger:
        b = mib(device)
        with pytest.raises(RuntimeError):
            a @ a
    with pytest.raises(ZeroDivisionError), ledger:
        1 / 0  # noqa: B018
    assert (ledger.live, ledger.peak) == (MIB, MIB)
    del b
    assert ledger.live == 0
    c = mib(device)
    assert (c.numel(), ledger.live) == (MIB, 0)  # afterwards nothing is watched any more


def test_other_devices_and_what_was_there_before_do_not_count(device):
    before = mib(device)
    with Ledger(device) as ledger:
        elsewhere = mib("meta" if device == "cpu" else "cpu")
        assert before.view(-1).numel() == elsewhere.numel()
        before.add_(1)
        assert ledger.live == 0


def test_hold_counts_what_no_operator_made_once():
    with Ledger("cpu") as ledger:
        memory = aligned(MIB)
        assert ledger.live == 0
        worker = threading.Thread(target=ledger.hold, args=(memory,))
        worker.start()
        worker.join()
        assert ledger.hold(memory[5:]) is not memory  # counts already
        assert ledger.peak == MIB
        del memory
        assert ledger.live == 0


def heads(count, tokens, dtype):
    return torch.empty(1, tokens, count, 64, dtype=dtype, device="meta").transpose(1, 2)


@pytest.mark.parametrize(
    ("dtype", "key_heads", "masked", "nbytes"),
    [
        (torch.float16, 8, False, 2 * 8 * 512 * 64 + 4 * 8 * 512),  # flash: the output and the log-sum-exp
        (torch.float16, 8, True, 2 * 8 * 512 * 64 + 2 * 512 * 512),  # memory-efficient: the output; the mask as a bias
        (torch.float32, 8, False, 4 * 8 * 512 * 64),
    ],
)
def test_attention_makes_no_square_of_the_tokens(mode, dtype, key_heads, masked, nbytes):
    query, key = heads(8, 512, dtype), heads(key_heads, 512, dtype)
    mask = torch.ones(512, 512, dtype=torch.bool, device="meta") if masked else None
    results = []
    peak = trace_peak(
        lambda: results.append(
            functional.scaled_dot_product_attention(
                query, key, key, attn_mask=mask, is_causal=not masked, enable_gqa=key_heads != 8
            )
        ),
        "meta",
    )
    assert peak == pytest.approx(nbytes, abs=64)  # the random state of dropout is a few bytes
    assert results[0].shape == query.shape
    assert results[0].transpose(1, 2).is_contiguous()  # as the kernels lay it out: transformers copies nothing


def forward(model, ids):
    """A forward and the chunked loss."""

    def run():
        with torch.inference_mode():
            hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
            states = hidden.reshape(-1, hidden.shape[-1])
            mean_loss(log_probabilities(model.get_output_embeddings(), states, next_tokens(ids), 64), next_tokens(ids))

    return run


def on_cpu(name, dtype):
    model = models.build(name, dtype)
    materialise(model, RandomWeights(model, 0), "cpu")
    return model


def on_meta(name, dtype):
    model = models.build(name, dtype)
    for module in model.modules():
        for key, buffer in module.named_buffers(recurse=False):
            setattr(module, key, buffer.to("meta"))
    return model


def allocator_peak(run):
    """Peak bytes that PyTorch's CPU allocator gave out during ``run``, as its profiler saw them."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(itertools.accumulate(event.nbytes() for event in events))


@pytest.mark.parametrize("name", ["opt-tiny", "qwen3-tiny"])
def test_the_ledger_equals_the_allocator(name):
    run = forward(on_cpu(name, "fp32"), torch.arange(128).view(2, 64))
    run()  # what is made once is made
    assert trace_peak(run, "cpu") == allocator_peak(run)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("opt-tiny", "fp32"), ("opt350-tiny", "bf16"), ("qwen3-tiny", "bf16")],  # in fp32 grouped heads are plain products
)
def test_meta_equals_cpu(name, dtype):
    ids = torch.arange(128).view(2, 64)
    cpu = trace_peak(forward(on_cpu(name, dtype), ids), "cpu")
    meta = trace_peak(forward(on_meta(name, dtype), ids.to("meta")), "meta")
    assert meta == cpu


def test_the_largest_model_is_traced_without_its_memory():
    peak = trace_peak(
        forward(on_meta("OPT-175B", "fp16"), torch.empty(1, 2048, dtype=torch.int64, device="meta")), "meta"
    )
    assert 100e6 < peak < 1e9


def traced(spec, folder, monkeypatch):
    """The peak of a step as the ledger counts it: slots and resident parts, which are no operators' work, by hand."""
    ledger, allocate = Ledger("cpu"), build.allocate
    for module in (assemble, build, pipeline):
        monkeypatch.setattr(module, "allocate", lambda *args: ledger.hold(allocate(*args)))
    model = models.build(spec.model, spec.dtype)
    config = EngineConfig(placement=spec.engine, tier="disk", disk_dir=folder)
    with ledger, Engine(model, config, weights=RandomWeights(model, 0)) as engine:
        ZOSGD(lr=1e-7).step(engine, next(stream(spec, model.config.vocab_size, None)))
    monkeypatch.undo()
    return ledger.peak


@pytest.mark.slow
def test_the_ledger_predicts_what_the_process_takes(monkeypatch, tmp_path):
    spec = RunSpec(model="OPT-125M", seq_len=512, steps=1, warmup=0, engine="offload", device="cpu")
    folder = Path("/dev/shm") if Path("/dev/shm").is_dir() else tmp_path  # memory of nobody's process, and no waiting
    peak = traced(spec, folder, monkeypatch)
    # What is in the process and in no tensor: the C library's heap, which keeps freed tensors below its threshold (20
    # to 80 MB), and MKL's buffers of packed matrices (17 MB). Both can be told not to keep anything.
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=65536")
    monkeypatch.setenv("MKL_DISABLE_FAST_MM", "1")
    result = run_in_process(spec, disk_dir=folder)
    assert result.memory["device_peak_bytes"] == pytest.approx(peak, rel=0.05)

"""The engine's small parts: points, the chunked loss, tiers."""

import pytest
import torch
from torch.nn import functional

from zobench import Point
from zobench.engine.passes.loss import log_probabilities, mean_loss
from zobench.engine.weights.tiers import DiskTier, HostTier, allocate


def test_a_point_without_a_seed_cannot_have_a_scale():
    with pytest.raises(ValueError, match="give it a seed"):
        Point(None, 0.5)


@pytest.mark.parametrize("ignored", [0, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_chunked_loss_is_cross_entropy(dtype, ignored):
    torch.manual_seed(0)
    head, states = torch.nn.Linear(16, 50, bias=False).to(dtype), torch.randn(18, 16, dtype=dtype)
    targets = torch.randint(50, (18,))
    targets[:ignored] = -100
    with torch.inference_mode():
        whole = functional.cross_entropy(head(states).float(), targets, ignore_index=-100)
        assert mean_loss(log_probabilities(head, states, targets, 18), targets) == whole
        for rows in (1, 4, 7):  # the product of fewer rows may round differently; the sum may not
            chunked = mean_loss(log_probabilities(head, states, targets, rows), targets)
            torch.testing.assert_close(chunked, whole, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", ["pageable", "disk"])
def test_blocks_of_a_ring_serve_all_layers_in_turn(kind, tmp_path):
    """Layer 2 is filled by nobody and reads what layer 0 wrote."""
    sizes = [4096, 8192, 4096]
    tier = DiskTier(sizes, tmp_path, ring=2) if kind == "disk" else HostTier(sizes, pinned=False, ring=2)
    for block in range(3):
        tier.fill(block, lambda buffer, value=block: buffer.fill_(value + 1))
    for block, value in ((0, 1), (1, 2), (2, 1)):
        slot = allocate(sizes[block])
        tier.upload(block, slot)
        assert slot.unique().tolist() == [value]
    tier.close()
    assert list(tmp_path.iterdir()) == []

"""Packed documents of every family: each has the logits that it has alone."""

import pytest
import torch

from disagmoe.model.init import initial_store
from disagmoe.model.mixing import Documents
from disagmoe.model.partition import balance_tensors, model_tensors
from disagmoe.model.transformer import logits
from tests.unit.runtime.test_families import FAMILIES
from tests.unit.runtime.tiny import tiny

LENGTHS = ((5, 1, 6), (12,), (1,) * 12)
"""Boundaries that differ by row; the last row is what a row of nothing but ends is read as."""


@pytest.mark.parametrize("family", ["qwen3", *FAMILIES])
def test_a_document_has_the_logits_that_it_has_alone(family: str) -> None:
    """nanoVLM#204, transformers#46634: tokens that see another document, or positions that go on.
    Megatron-LM#5635: rows of a micro-batch with boundaries of their own, and rows without content.
    """
    model = tiny(**FAMILIES.get(family, {})).model
    tensors = (*model_tensors(model), *balance_tensors(model, range(model.layers)))
    store = initial_store(tensors, seed=3, std=0.3, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    tokens_BS = torch.randint(model.vocab_size, (3, 12), generator=generator)
    packed_BSV = logits(store, model, tokens_BS, documents=Documents(LENGTHS))
    assert packed_BSV.isfinite().all()
    for row, lengths in enumerate(LENGTHS):
        first = 0
        for length in lengths:
            part = slice(first, first + length)
            alone = logits(store, model, tokens_BS[None, row, part])[0]
            torch.testing.assert_close(packed_BSV[row, part], alone, rtol=1e-10, atol=1e-12)
            first += length
    unmasked = logits(store, model, tokens_BS)
    assert (unmasked[0, 5:] - packed_BSV[0, 5:]).abs().max() > 1e-6
    torch.testing.assert_close(unmasked[1], packed_BSV[1], rtol=1e-10, atol=1e-12)

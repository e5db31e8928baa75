"""Sums of narrow terms in a wide type."""

import pytest
import torch

from disagmoe.model.precision import add_to


@pytest.mark.parametrize("shape", [(0, 5), (7,), (3, 5), (600, 1024), (2, 300_000), (5, 333, 401)])
@pytest.mark.parametrize("term_type", [torch.bfloat16, torch.float32])
def test_a_sum_in_pieces_has_the_bits_of_one_sum(
    shape: tuple[int, ...], term_type: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(1)
    total = torch.randn(shape, generator=generator)
    term = torch.randn(shape, generator=generator).to(term_type)
    expected = total + term
    add_to(total, term)
    assert torch.equal(total, expected)


def test_a_term_that_is_not_contiguous_is_added_where_it_belongs() -> None:
    total = torch.zeros(1024, 600)
    term = torch.arange(600 * 1024.0).remainder(256).to(torch.bfloat16).view(600, 1024).T
    add_to(total, term)
    assert torch.equal(total, term.float())

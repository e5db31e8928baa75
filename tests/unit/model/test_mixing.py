"""Windows, sinks and documents against an explicit mask, and what no token may see."""

import pytest
import torch

from disagmoe.model.mixing import Documents, mix


def plain(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float,
    window: int,
    sinks_H: torch.Tensor | None,
    documents: Documents | None,
) -> torch.Tensor:
    batch, heads, length, _ = q.shape
    k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (k, v))
    place = torch.arange(length)
    mask = (place[:, None] >= place).expand(batch, -1, -1).clone()
    if window:
        mask &= place[:, None] - place < window
    for row, lengths in enumerate(documents.lengths if documents else ()):
        number = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
        mask[row] &= number[:, None] == number
    scores = (q @ k.transpose(2, 3) * scale).masked_fill(~mask[:, None], float("-inf"))
    if sinks_H is not None:
        sink = sinks_H[None, :, None, None].expand(batch, -1, length, 1)
        scores = torch.cat((scores, sink), dim=-1)
    return scores.softmax(-1)[..., :length] @ v


DOCUMENTS = Documents(((1, 7, 5), (13,)))


@pytest.mark.parametrize("values", [6, 4, 10])
@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["one", "several"])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("window", [0, 1, 3, 13, 40])
def test_equals_an_explicit_mask(
    window: int, sinks: bool, documents: Documents | None, values: int
) -> None:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    q, k, v = draw(2, 4, 13, 6), draw(2, 2, 13, 6), draw(2, 2, 13, values)
    sinks_H = draw(4) if sinks else None
    inputs = [q, k, v, *([sinks_H] if sinks_H is not None else [])]
    grad = torch.randn(2, 4, 13, values, generator=generator, dtype=torch.float64)
    found, expected = (
        way(q, k, v, scale=0.3, window=window, sinks_H=sinks_H, documents=documents)
        for way in (mix, plain)
    )
    torch.testing.assert_close(found, expected)
    for ours, theirs in zip(
        torch.autograd.grad(found, inputs, grad),
        torch.autograd.grad(expected, inputs, grad),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("window", [0, 3])
def test_a_document_is_the_same_bits_whatever_the_other_is(window: int) -> None:
    documents = Documents(((6, 7),))
    q, k, v = (torch.randn(1, 2, 13, 8) for _ in range(3))
    before = mix(q, k, v, scale=1.0, window=window, documents=documents)
    for x in (q, k, v):
        x[:, :, :6] = torch.randn(1, 2, 6, 8)
    after = mix(q, k, v, scale=1.0, window=window, documents=documents)
    assert torch.equal(after[:, :, 6:], before[:, :, 6:])
    assert not torch.equal(after[:, :, :6], before[:, :, :6])


def test_no_sequences_are_legal() -> None:
    q = torch.zeros(0, 2, 5, 4)
    for documents in (None, Documents(())):
        sinks = torch.zeros(2)
        assert (
            mix(q, q, q, scale=1.0, window=2, sinks_H=sinks, documents=documents).shape == q.shape
        )


def test_positions_start_anew_with_each_document() -> None:
    assert DOCUMENTS.positions(torch.device("cpu")).tolist() == [
        *(0, *range(7), *range(5)),
        *range(13),
    ]
    starts = torch.zeros(2, 13, dtype=torch.bool)
    starts[0, [0, 1, 8]] = True
    assert Documents.of(starts) == DOCUMENTS

"""Causal scaled-dot-product attention with sinks, sliding windows and documents, in memory that is
linear in the sequence's length.

Letters: B sequences, S positions, H query heads, K key/value heads, C width of queries and keys, V
width of values, W window.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

_ALIGN = 8  # elements; kernels want head widths that are multiples of it


@dataclass(frozen=True, slots=True)
class Documents:
    """Where the documents of packed sequences lie; tokens see none of another document."""

    lengths: tuple[tuple[int, ...], ...]
    """Tokens of each document of each sequence, in order."""

    @classmethod
    def of(cls, starts_BS: torch.Tensor) -> "Documents":
        """Return the documents that begin where `starts_BS` is true; each sequence begins one."""
        rows = []
        for starts_S in starts_BS:
            begins = [0, *(at for at in starts_S.nonzero().flatten().tolist() if at > 0)]
            ends = [*begins[1:], len(starts_S)]
            rows.append(tuple(end - begin for begin, end in zip(begins, ends, strict=True)))
        return cls(tuple(rows))

    def positions(self, device: torch.device) -> torch.Tensor:
        """Return the place of each token in its document, int64 [B * S]."""
        return torch.cat(
            [torch.arange(n, device=device) for lengths in self.lengths for n in lengths]
        )


def mix(
    q_BHSC: torch.Tensor,
    k_BKSC: torch.Tensor,
    v_BKSV: torch.Tensor,
    *,
    scale: float,
    window: int = 0,
    sinks_H: torch.Tensor | None = None,
    documents: Documents | None = None,
) -> torch.Tensor:
    """Return attention of each query to its own and earlier keys, [B, H, S, V].

    Query head i attends with key/value head i // (H / K). `window` > 0 limits it to so many keys,
    its own included. `sinks_H` are logits of one more key per head, whose value is 0. Zero
    sequences are legal.
    """
    values = v_BKSV.shape[3]
    q_BHSC, k_BKSC, v_BKSV = _even_widths(q_BHSC, k_BKSC, v_BKSV, scale, sinks_H)
    if documents is None:
        mixed_BHSC = _whole(q_BHSC, k_BKSC, v_BKSV, scale, window, sinks_H is not None)
    else:
        mixed_BHSC = _by_document(q_BHSC, k_BKSC, v_BKSV, scale, window, sinks_H, documents)
    return mixed_BHSC[..., :values]


def _even_widths(
    q_BHSC: torch.Tensor,
    k_BKSC: torch.Tensor,
    v_BKSV: torch.Tensor,
    scale: float,
    sinks_H: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pad all three with zeros to one width, without which no kernel has linear memory. With sinks
    queries get sink / scale in a new dimension, where `_sink_key` has 1 and other keys have 0."""
    width, values = q_BHSC.shape[3], v_BKSV.shape[3]
    extra = 0 if sinks_H is None else _ALIGN
    wanted = max(width + extra, values)
    q_BHSC = F.pad(q_BHSC, (0, wanted - width)) if wanted > width else q_BHSC
    k_BKSC = F.pad(k_BKSC, (0, wanted - width)) if wanted > width else k_BKSC
    v_BKSV = F.pad(v_BKSV, (0, wanted - values)) if wanted > values else v_BKSV
    if sinks_H is not None:
        q_BHSC = q_BHSC + (sinks_H / scale)[:, None, None] * _sink_unit(q_BHSC)
    return q_BHSC, k_BKSC, v_BKSV


def _by_document(
    q_BHSC: torch.Tensor,
    k_BKSC: torch.Tensor,
    v_BKSC: torch.Tensor,
    scale: float,
    window: int,
    sinks_H: torch.Tensor | None,
    documents: Documents,
) -> torch.Tensor:
    """One document after the other, so that none can see another whatever its values are."""
    rows = []
    for row, lengths in enumerate(documents.lengths):
        parts = zip(
            *(x[row : row + 1].split(lengths, dim=2) for x in (q_BHSC, k_BKSC, v_BKSC)),
            strict=True,
        )
        mixed = [_whole(q, k, v, scale, window, sinks_H is not None) for q, k, v in parts]
        rows.append(torch.cat(mixed, dim=2))
    return torch.cat(rows) if rows else torch.zeros_like(q_BHSC)


def _whole(
    q_BHSC: torch.Tensor,
    k_BKSC: torch.Tensor,
    v_BKSC: torch.Tensor,
    scale: float,
    window: int,
    sink: bool,
) -> torch.Tensor:
    if 0 < window < q_BHSC.shape[2]:
        return _windowed(q_BHSC, k_BKSC, v_BKSC, scale, window, sink)
    grouped = q_BHSC.shape[1] != k_BKSC.shape[1]
    if not sink:
        return F.scaled_dot_product_attention(
            q_BHSC, k_BKSC, v_BKSC, is_causal=True, scale=scale, enable_gqa=grouped
        )
    # a query and a key before all others: the key is the sink, which every query may see
    mixed = F.scaled_dot_product_attention(
        F.pad(q_BHSC, (0, 0, 1, 0)),
        torch.cat((_sink_key(k_BKSC), k_BKSC), dim=2),
        F.pad(v_BKSC, (0, 0, 1, 0)),
        is_causal=True,
        scale=scale,
        enable_gqa=grouped,
    )
    return mixed[:, :, 1:]


def _sink_key(k_BKSC: torch.Tensor) -> torch.Tensor:
    """Return the key [B, K, 1, C] whose product with a query is its sink / scale."""
    return _sink_unit(k_BKSC).expand(*k_BKSC.shape[:2], 1, -1)


def _sink_unit(like: torch.Tensor) -> torch.Tensor:
    """Return 1 in the dimension that belongs to the sink, which is a padded one, else 0."""
    unit_C = torch.zeros(like.shape[3], dtype=like.dtype, device=like.device)
    unit_C[-_ALIGN] = 1
    return unit_C


def _windowed(
    q_BHSC: torch.Tensor,
    k_BKSC: torch.Tensor,
    v_BKSC: torch.Tensor,
    scale: float,
    window: int,
    sink: bool,
) -> torch.Tensor:
    """Blocks of W queries, each with the keys of its own block and of the one before."""
    batch, heads, length, width = q_BHSC.shape
    kv_heads = k_BKSC.shape[1]
    blocks = -(-length // window)
    padding = blocks * window - length

    def cut(x_BHSC: torch.Tensor, before: int) -> torch.Tensor:
        """Return blocks [B * blocks, heads, window + before, C], with the keys before each."""
        padded = F.pad(x_BHSC, (0, 0, before, padding))
        pieces = padded.unfold(2, window + before, window).movedim(2, 1)
        return pieces.flatten(0, 1).transpose(2, 3)

    keys, values = cut(k_BKSC, window), cut(v_BKSC, window)
    visible = _window_mask(blocks, window, q_BHSC.device)
    if sink:
        keys = torch.cat((keys, _sink_key(keys)), dim=2)
        values, visible = F.pad(values, (0, 0, 0, 1)), F.pad(visible, (0, 1), value=True)
    mixed = F.scaled_dot_product_attention(
        cut(q_BHSC, 0),
        keys,
        values,
        attn_mask=visible.repeat(batch, 1, 1)[:, None],
        scale=scale,
        enable_gqa=heads != kv_heads,
    )
    joined = mixed.reshape(batch, blocks, heads, window, width).movedim(1, 2).flatten(2, 3)
    return joined[:, :, :length]


def _window_mask(blocks: int, window: int, device: torch.device) -> torch.Tensor:
    """Return which of the 2W keys each query of a block sees [blocks, W, 2W]; the first block has
    none before it."""
    query = torch.arange(window, device=device)[:, None]
    key = torch.arange(2 * window, device=device)[None, :]
    inside = (key > query) & (key <= query + window)
    mask = inside.repeat(blocks, 1, 1)
    mask[:1] &= key >= window
    return mask

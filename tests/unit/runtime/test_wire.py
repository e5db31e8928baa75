import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from disagmoe.runtime.wire import Incoming, Message, Outgoing, Section, Wire, header

CPU = torch.device("cpu")


def wire(*, with_tokens: bool = True, with_home: bool = True) -> Wire:
    return Wire(
        hidden=3,
        dtype=torch.bfloat16,
        exact=torch.float32,
        with_tokens=with_tokens,
        with_home=with_home,
    )


def names(message: Message) -> list[str]:
    return [section.name for section in message.sections]


def test_sections_of_every_payload() -> None:
    full, plain = wire(), wire(with_tokens=False, with_home=False)
    assert names(plain.rows(2, 5)) == ["rows_RD", "gate_P", "row_P", "expert_P"]
    assert names(full.rows(2, 5)) == [
        "rows_RD",
        "gate_P",
        "row_P",
        "expert_P",
        "token_R",
        "home_R",
    ]
    assert names(plain.outputs(2)) == ["rows_RD"]
    assert names(full.outputs(2)) == ["rows_RD", "token_R"]
    assert names(full.doutputs(2)) == ["rows_RD"]
    assert names(full.drows(2, 5)) == ["rows_RD", "gate_P"]
    assert names(full.residual(2)) == ["x_TD"]


def test_sections_start_at_multiples_of_16_bytes() -> None:
    message = wire().rows(5, 3)  # 30 bytes of rows, then 12, 12, 12, 20 and 5
    buffer = torch.zeros(message.nbytes, dtype=torch.uint8)
    views = message.views(buffer)
    starts = [view.data_ptr() - buffer.data_ptr() for view in views.values()]
    assert starts == [0, 32, 48, 64, 80, 112]
    assert message.nbytes == 117
    assert [view.dtype for view in views.values()] == [
        torch.bfloat16,
        torch.float32,
        torch.int32,
        torch.int32,
        torch.int32,
        torch.uint8,
    ]


def test_an_empty_message_has_no_bytes() -> None:
    for message in (wire().rows(0, 0), wire().outputs(0), wire().drows(0, 0), wire().residual(0)):
        assert message.nbytes == 0
        views = message.views(message.allocate(CPU))
        assert all(view.numel() == 0 for view in views.values())
    assert wire().rows(0, 0).views(torch.empty(0, dtype=torch.uint8))["rows_RD"].shape == (0, 3)


SECTIONS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 4), min_size=1, max_size=3),
        st.sampled_from([torch.uint8, torch.bfloat16, torch.int32, torch.float64]),
    ),
    min_size=1,
    max_size=5,
)


@given(SECTIONS)
def test_what_is_written_is_read(shapes: list[tuple[list[int], torch.dtype]]) -> None:
    sections = [Section(f"s{i}", tuple(s), dtype) for i, (s, dtype) in enumerate(shapes)]
    message = Message(tuple(sections))
    buffer = message.allocate(CPU)
    values = {
        section.name: torch.arange(torch.Size(section.shape).numel(), dtype=torch.int64)
        .add(i)
        .to(section.dtype)
        .view(section.shape)
        for i, section in enumerate(sections)
    }
    for name, view in message.views(buffer).items():
        view.copy_(values[name])
    read = message.views(buffer.clone())  # another place, as at the other end
    assert read.keys() == values.keys()
    assert all(torch.equal(read[name], value) for name, value in values.items())


def test_a_buffer_of_another_size_does_not_pass_for_a_message() -> None:
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        wire().residual(3).views(torch.empty(wire().residual(2).nbytes, dtype=torch.uint8))


def test_header_says_what_follows() -> None:
    values = header(3, 1, 20, 40)
    assert values.dtype is torch.int64
    assert values.tolist() == [3, 1, 20, 40]


def test_incoming_has_room_for_every_peer() -> None:
    messages = [("F0.0", wire().outputs(2)), ("F0.1", wire().outputs(0))]
    incoming = Incoming.allocate(messages, CPU)
    assert {peer: len(buffer) for peer, buffer in incoming.buffers.items()} == {
        "F0.0": 24,  # 12 bytes of rows, 4 of padding, 8 of tokens
        "F0.1": 0,
    }
    assert incoming.views["F0.0"]["rows_RD"].shape == (2, 3)
    incoming.buffers["F0.0"].zero_()
    assert not incoming.views["F0.0"]["token_R"].any()


def test_outgoing_counts_all_bytes() -> None:
    buffers = {"A0.0": torch.zeros(5, dtype=torch.uint8), "A0.1": torch.zeros(2, dtype=torch.uint8)}
    assert Outgoing(buffers, {}).nbytes == 7

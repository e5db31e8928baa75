"""What two books say of transfers whose ends differ."""

from hypothesis import given
from hypothesis import strategies as st

from disagmoe.transport.nccl_book import Book, Entry, disagreements

A, F = "A0.0", "F0.0"
OUT, BACK = "A0>F0.act", "F0>A0.grad"


def sent(book: Book, channel: str, label: str, size: str, post: int = 0) -> Entry:
    return book.write(channel, post, label, {F if book.worker == A else A: size}, {})


def received(book: Book, channel: str, label: str, size: str, post: int = 0) -> Entry:
    return book.write(channel, post, label, {}, {F if book.worker == A else A: size})


def test_books_that_agree_have_nothing_to_say() -> None:
    mine, other = Book(A), Book(F)
    entry = sent(mine, OUT, "L0 m0", "4 bytes")
    received(other, OUT, "L0 m0", "4 bytes")
    assert disagreements(mine, [entry], {F: other}) == []


def test_a_size_that_differs() -> None:
    mine, other = Book(A), Book(F)
    entry = sent(mine, OUT, "L3 m1", "40 bytes", post=7)
    received(other, OUT, "L3 m1", "36 bytes", post=7)
    assert disagreements(mine, [entry], {F: other}) == [
        "channel A0>F0.act, worker A0.0, post 7 (L3 m1): A0.0 sends 40 bytes, F0.0 expects 36 bytes"
    ]


def test_a_receive_that_was_never_launched() -> None:
    mine, other = Book(A), Book(F)
    received(other, OUT, "L0 m0", "4 bytes")
    sent(mine, OUT, "L0 m0", "4 bytes")
    entry = sent(mine, OUT, "L0 m1", "8 bytes", post=1)
    assert disagreements(mine, [entry], {F: other}) == [
        "channel A0>F0.act, worker A0.0, post 1 (L0 m1): F0.0 has not launched its receive of the "
        "8 bytes; its last launch is A0>F0.act L0 m0"
    ]


def test_another_order_across_channels() -> None:
    mine, other = Book(A), Book(F)
    sent(mine, OUT, "L0 m0", "4 bytes")
    entry = received(mine, BACK, "L0 m1", "4 bytes")
    sent(other, BACK, "L0 m1", "4 bytes")
    received(other, OUT, "L0 m0", "4 bytes")
    assert disagreements(mine, [entry], {F: other}) == [
        "channel F0>A0.grad, worker A0.0, post 0 (L0 m1): A0.0 launches A0>F0.act L0 m0 before "
        "F0>A0.grad L0 m1, F0.0 after it; NCCL needs one order"
    ]


def test_a_worker_without_a_book_is_not_judged() -> None:
    mine = Book(A)
    assert disagreements(mine, [sent(mine, OUT, "L0 m0", "4 bytes")], {}) == []


def test_messages_of_an_edge_are_numbered() -> None:
    book = Book(A)
    entries = [sent(book, OUT, f"L0 m{m}", "4 bytes") for m in range(3)]
    assert [message.number for entry in entries for message in entry.messages] == [0, 1, 2]
    assert entries[0].peers(A) == {F}


sizes = st.dictionaries(st.sampled_from(["F0.0", "F0.1", "A1.0"]), st.text(max_size=8), max_size=3)


@given(st.lists(st.tuples(st.sampled_from([OUT, BACK]), sizes, sizes), max_size=6))
def test_what_is_written_is_read_again(
    posts: list[tuple[str, dict[str, str], dict[str, str]]],
) -> None:
    book = Book(A)
    for number, (channel, sends, recvs) in enumerate(posts):
        book.write(channel, number, f"L0 m{number}", sends, recvs)
    read = Book.decode(book.encode())
    assert (read.worker, list(read.entries)) == (A, list(book.entries))

"""Values of a process, as a scrape sees them."""

import threading

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from disagmoe.metrics import catalogue
from disagmoe.metrics.board import Board

IDENTITY = {"role": "expert", "group": "1", "rank": "2", "ring": "0"}


def lines(board: Board) -> list[str]:
    return [x for x in generate_latest(board.registry).decode().splitlines() if x[0] != "#"]


def test_values_carry_labels_and_who_serves_them() -> None:
    board = Board(IDENTITY)
    board.add(catalogue.SECONDS, 1.5, kind="compute")
    board.add(catalogue.SECONDS, 0.25, kind="compute")
    board.set(catalogue.LOSS, float("nan"))
    board.ask(catalogue.LAST_PROGRESS, lambda: 12.0)
    me = 'rank="2",ring="0",role="expert"'
    assert lines(board) == [
        f'disagmoe_seconds_total{{group="1",kind="compute",{me}}} 1.75',
        f'disagmoe_loss{{group="1",{me}}} NaN',
        f'disagmoe_last_progress_timestamp_seconds{{group="1",{me}}} 12.0',
    ]


def test_openmetrics_tells_units_that_names_end_with() -> None:
    board = Board(IDENTITY)
    board.add(catalogue.SECONDS, 1, kind="compute")
    board.set(catalogue.PEAK_MEMORY, 1)
    board.set(catalogue.LOSS, 1)
    text = generate_openmetrics(board.registry).decode()
    assert [line for line in text.splitlines() if line.startswith("# UNIT")] == [
        "# UNIT disagmoe_seconds seconds",
        "# UNIT disagmoe_memory_peak_bytes bytes",
    ]


def test_two_boards_do_not_meet() -> None:
    one, other = Board(IDENTITY), Board(IDENTITY)
    one.set(catalogue.LOSS, 1)
    assert lines(other) == []


def test_a_scrape_sees_a_change_whole() -> None:
    board = Board(IDENTITY)
    seen: list[list[str]] = []
    scrape = threading.Thread(target=lambda: seen.append(lines(board)))
    with board.changes():
        board.add(catalogue.STEPS, 1)
        scrape.start()
        scrape.join(0.05)
        assert seen == []
        board.add(catalogue.TOKENS, 7)
    scrape.join(5)
    assert [line.rpartition(" ")[2] for line in seen[0]] == ["1.0", "7.0"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b.set(catalogue.STEPS, 1), "disagmoe_steps_total is a counter"),
        (lambda b: b.add(catalogue.LOSS, 1), "disagmoe_loss does not take 1"),
        (lambda b: b.add(catalogue.STEPS, -1), "disagmoe_steps_total does not take -1"),
        (lambda b: b.add(catalogue.SECONDS, 1), r"has labels \('kind',\), not \(\)"),
        (lambda b: b.add(catalogue.STEPS, 1, step="3"), r"has labels \(\), not \('step',\)"),
    ],
)
def test_what_the_catalogue_does_not_know_is_refused(change: object, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        change(Board(IDENTITY))  # type: ignore[operator]


def test_an_identity_is_whole() -> None:
    with pytest.raises(AssertionError, match="are other labels than"):
        Board({"role": "driver"})

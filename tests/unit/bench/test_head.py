import pytest

from disagmoe.bench.head import HeadMemory, measure_head


@pytest.mark.slow
def test_all_logits_of_a_large_vocabulary_are_never_in_memory() -> None:
    found = measure_head(151_936, 4096)
    assert found.full_logits_bytes == 151_936 * 4096 * 4
    assert 0 < found.step_bytes < found.full_logits_bytes
    assert found.ok


def test_a_step_with_all_logits_does_not_pass() -> None:
    found = HeadMemory(100, 10, 4000, 4000, 9000, 0)
    assert not found.ok
    assert found.as_json()["ok"] is False

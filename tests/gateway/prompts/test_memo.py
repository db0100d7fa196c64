from gateway.prompts.memo import SegmentMemo
from gateway.prompts.token_ids import TokenIds


def test_it_is_bounded_by_bytes_and_forgets_the_oldest() -> None:
    memo = SegmentMemo(20_000)
    for number in range(100):
        memo.put(f"segment {number}", TokenIds.of([*range(50)]))
        memo.get("segment 0")
    assert memo.bytes <= 20_000
    assert memo.get("segment 0") is not None
    assert memo.get("segment 1") is None
    assert memo.get("segment 99") is not None
    memo.put("huge", TokenIds.of([*range(10_000)]))
    assert memo.get("huge") is None

import pytest

from replica.admission import QueueLimits, refusal
from replica.protocol.records import CostModel, Load

COST = CostModel(c0=0.01, c_lin=0.001, c_att=0.0, c_dec=0.0, max_step_tokens=256)
LIMITS = QueueLimits(max_waiting=10, max_waiting_tokens=5000)


def test_there_is_room() -> None:
    assert refusal(Load(waiting=9, pending_tokens=4000), LIMITS, COST, 1000) is None


def test_too_many_requests() -> None:
    refused = refusal(Load(waiting=10, pending_tokens=40), LIMITS, COST, 1)
    assert refused is not None
    assert "10 requests" in refused.message and "max_waiting)" in refused.message
    assert refused.retry_after_s == 1


def test_too_many_tokens() -> None:
    refused = refusal(Load(waiting=3, pending_tokens=4900), LIMITS, COST, 101)
    assert refused is not None
    assert "4900 prompt tokens" in refused.message and "max_waiting_tokens" in refused.message


def test_a_prompt_longer_than_the_limit_gets_into_an_empty_queue() -> None:
    assert refusal(Load(), LIMITS, COST, 100_000) is None


def test_the_default_is_a_multiple_of_the_kv_memory() -> None:
    limits = QueueLimits(max_waiting=10)
    assert refusal(Load(pending_tokens=6000, total_blocks=100), limits, COST, 400) is None
    assert refusal(Load(pending_tokens=6000, total_blocks=100), limits, COST, 401) is not None


@pytest.mark.parametrize(
    ("waiting", "pending", "prompt", "seconds"),
    [
        (3, 4999, 2561, 3),  # 2,560 tokens too many: 10 steps of 10 ms, and 1 ms a token
        (3, 4999, 100_000, 6),  # when all that waits is done it gets in, however long it is
        (10, 40_000, 1, 5),  # one of 10 must go first
        (10, 4_000_000, 1, 60),
    ],
)
def test_retry_after_is_when_there_should_be_room(waiting: int, pending: int, prompt: int, seconds: int) -> None:
    refused = refusal(Load(waiting=waiting, pending_tokens=pending), LIMITS, COST, prompt)
    assert refused is not None and refused.retry_after_s == seconds


def test_decodes_beside_it_make_the_wait_longer() -> None:
    cost = CostModel(c0=0.01, c_lin=0.001, c_att=0.0, c_dec=0.01, max_step_tokens=256)
    idle = refusal(Load(waiting=10, pending_tokens=40_000), LIMITS, cost, 1)
    busy = refusal(Load(waiting=10, running=32, decoding=32, pending_tokens=40_000), LIMITS, cost, 1)
    assert idle is not None and busy is not None
    assert busy.retry_after_s > idle.retry_after_s

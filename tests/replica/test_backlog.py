import random

from replica.backlog import Backlog
from replica.sequence import SamplingParams, Sequence


def test_differences_come_to_what_counting_anew_gives(seed: int) -> None:
    rng = random.Random(seed)
    backlog = Backlog()
    done: dict[Sequence, int] = {}
    for number in range(3000):
        sequence = rng.choice(list(done)) if len(done) > 8 or (done and rng.random() < 0.8) else None
        if sequence is None:
            prompt = [token for _ in range(5) for token in [rng.randrange(2)] * 16][: rng.randrange(1, 81)]
            sequence = Sequence(str(number), prompt, SamplingParams(max_tokens=9), namespace=rng.randrange(2))
        if sequence in done and rng.random() < 0.2:
            del done[sequence]
            backlog.drop(sequence)
            backlog.drop(sequence)
        else:
            if rng.random() < 0.1:
                sequence.append(1)
            done[sequence] = rng.randrange(len(sequence.tokens) + 1)
            backlog.update(sequence, done[sequence])
        assert backlog.num_tokens == counted_anew(done)
    for sequence in done:
        backlog.drop(sequence)
    assert backlog.num_tokens == 0


def counted_anew(done: dict[Sequence, int]) -> int:
    blocks = {block for sequence, start in done.items() for block in sequence.hashes[start // 16 :]}
    tails = [len(sequence.tokens) - max(start, len(sequence.hashes) * 16) for sequence, start in done.items()]
    return len(blocks) * 16 + sum(tails)

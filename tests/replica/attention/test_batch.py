import random

from replica.attention.batch import AttentionBatch
from replica.sequence import Chunk, SamplingParams, Sequence


def test_a_batch_tells_each_row_its_place(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        chunks = []
        for _ in range(rng.randrange(1, 8)):
            length = rng.randrange(1, 80)
            sequence = Sequence("s", [1] * length, SamplingParams(1), 0)
            sequence.pages = rng.sample(range(1000), -(-length // 16) + rng.randrange(3))
            start = rng.randrange(length)
            chunks.append(Chunk(sequence, start, rng.randrange(1, length - start + 1)))
        batch = AttentionBatch.build(chunks)
        rows = [(n, chunk, place) for n, chunk in enumerate(chunks) for place in range(chunk.start, chunk.end)]
        assert batch.row_seq.tolist() == [n for n, _, _ in rows]
        assert batch.positions.tolist() == [place for _, _, place in rows]
        assert batch.row_len.tolist() == [place + 1 for _, _, place in rows]
        assert batch.slots.tolist() == [chunk.sequence.pages[at // 16] * 16 + at % 16 for _, chunk, at in rows]
        for n, chunk in enumerate(chunks):
            width = -(-chunk.end // 16)
            assert batch.page_table[n, :width].tolist() == chunk.sequence.pages[:width]
            assert not batch.page_table[n, width:].any()

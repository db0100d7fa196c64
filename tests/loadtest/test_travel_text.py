from itertools import islice
from random import Random

from loadtest import travel_text


def test_every_sentence_is_filled_and_ends() -> None:
    rng = Random(3)
    sentences = list(islice(travel_text.hotel_notes(rng, "Kyoto"), 200))
    sentences += list(islice(travel_text.guidelines(rng), 100))
    sentences += [travel_text.question(rng, "Kyoto") for _ in range(200)]
    sentences += [travel_text.follow_up(rng, "Kyoto") for _ in range(200)]
    for sentence in sentences:
        assert "{" not in sentence and "  " not in sentence, sentence
        assert sentence[-1] in ".?!" and not sentence[0].islower(), sentence


def test_cities_are_distinct() -> None:
    assert len(set(travel_text.CITIES)) == len(travel_text.CITIES)

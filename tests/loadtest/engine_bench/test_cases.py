from random import Random

from loadtest.engine_bench.cases import CASES, COMPARED, GROUPS, fixed_text_windows
from replica.protocol.text import ModelText

VOCABULARY = 1000


def prompts_of(name: str) -> list[list[int]]:
    (case,) = [case for case in CASES if case.name == name]
    prompts: list[list[int]] = case.request(Random(1), VOCABULARY)["prompts"]
    return prompts


def test_prompts_have_the_sizes_that_the_figures_name() -> None:
    sizes = {case.name: [len(prompt) for prompt in prompts_of(case.name)] for case in COMPARED}
    assert sizes == {
        "prefill_1024": [1024],
        "decode_b1": [200],
        "decode_b8": [200] * 8,
        "decode_b32": [200] * 32,
        "agents50": [225] * 50,
    }


def test_agents_share_their_first_200_tokens_and_no_more() -> None:
    prompts = prompts_of("agents50")
    assert len({tuple(prompt[:200]) for prompt in prompts}) == 1
    assert len({tuple(prompt[:201]) for prompt in prompts}) > 40


def test_the_second_prompt_repeats_1000_tokens_of_the_first() -> None:
    cold, cached = prompts_of("ttft_cached")
    assert len(cold) == len(cached) == 1025
    assert cold[:1000] == cached[:1000]
    assert cold[1000:] != cached[1000:]


def test_a_seed_gives_the_same_prompts_and_another_seed_others() -> None:
    case = CASES[0]
    assert case.request(Random(3), VOCABULARY) == case.request(Random(3), VOCABULARY)
    assert case.request(Random(3), VOCABULARY) != case.request(Random(4), VOCABULARY)


def test_every_case_belongs_to_a_group_that_can_be_chosen() -> None:
    assert {case.group for case in CASES} < set(GROUPS)


def test_the_fixed_text_is_fixed_and_long_enough(tiny_text: ModelText) -> None:
    windows = fixed_text_windows(tiny_text)
    assert [len(window) for window in windows] == [1024] * 8
    assert windows == fixed_text_windows(tiny_text)
    assert len({tuple(window[:64]) for window in windows}) == 8

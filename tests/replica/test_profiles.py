import pytest

from replica.profiles import PROFILES, UnknownProfile, find_profile


@pytest.mark.parametrize("name", PROFILES)
def test_a_step_of_prompts_takes_what_the_published_cost_model_says(name: str) -> None:
    profile = find_profile(name)
    cost = profile.cost
    for tokens in (100, profile.max_step_tokens):
        seconds = profile.step_s(tokens, tokens * tokens / 2, decoding=0)
        assert seconds == pytest.approx(cost.prefill_s(tokens, 0))


def test_published_figures() -> None:
    assert find_profile("h100-qwen3-32b").step_s(8192, 0, 0) == pytest.approx(0.43)
    mocker = find_profile("dynamo-mocker")
    assert mocker.step_s(8192, 8192**2 / 2, 0) == pytest.approx(0.169, abs=0.001)
    assert mocker.step_s(0, 0, 8, kv_use=0.5) == pytest.approx(0.00574 + 0.027005 - 0.006435)
    assert mocker.step_s(0, 0, 8, kv_use=0.0) == pytest.approx(0.00574)


def test_a_coarser_profile_takes_as_long_for_what_its_tokens_stand_for() -> None:
    profile = find_profile("dynamo-mocker")
    coarse = profile.coarser(32)
    assert coarse.step_s(64, 64**2 / 2, 3) == pytest.approx(profile.step_s(2048, 2048**2 / 2, 3))
    assert coarse.kv_tokens == profile.kv_tokens / 32


def test_a_faster_profile_divides_all_seconds() -> None:
    for profile in PROFILES.values():
        fast = profile.faster(4)
        assert fast.step_s(100, 5000, 7, 0.3) == pytest.approx(profile.step_s(100, 5000, 7, 0.3) / 4)
        assert fast.kv_tokens == profile.kv_tokens


def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(UnknownProfile, match="cpu, dynamo-mocker, h100-70b, h100-8b, h100-qwen3-32b"):
        find_profile("gpu")

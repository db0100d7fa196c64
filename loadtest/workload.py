"""The running example as a workload, exact to the token, and the limit of what any cache could save on it.

50 agents share a system prompt; each asks about one of 10 cities, whose hotel notes are the same text each time; a
second turn repeats all that went before. Pure: a seed gives the same text on every machine.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from random import Random
from typing import Any

from loadtest import travel_text
from replica.protocol.hashing import BLOCK_SIZE, block_hashes
from replica.protocol.text import ModelText

Message = dict[str, str]

_MAX_TRIES = 4000
_SUM_ERROR = 1
"""By how many tokens a sum over sentences may be off for tokenizers that merge across them."""
_BODY_SHARE = 0.85
"""Text grows sentence by sentence up to this share of its tokens; the rest is searched for an exact fit."""


class WorkloadError(ValueError):
    """No text of the asked size can be composed for this tokenizer."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens, as the model's own tokenizer and chat template count them."""

    system_tokens: int = 200
    """The system prompt's text."""
    prompt_tokens: int = 1025
    """The whole rendered prompt of a first turn, template tokens included."""
    question_tokens: int = 25
    """A question's text."""
    output_tokens: int = 150


@dataclass(frozen=True, slots=True)
class Conversation:
    agent: int
    city: str
    system: str
    user: str
    """The first turn: the city's hotel notes, then a question."""
    follow_ups: tuple[str, ...]

    @property
    def turns(self) -> int:
        return 1 + len(self.follow_ups)

    def messages(self, answers: Sequence[str] = ()) -> list[Message]:
        """The prompt of turn `len(answers)`, given the assistant's answers to the turns before."""
        messages = [{"role": "system", "content": self.system}, {"role": "user", "content": self.user}]
        for answer, follow_up in zip(answers, self.follow_ups, strict=False):
            messages.append({"role": "assistant", "content": answer})
            messages.append({"role": "user", "content": follow_up})
        return messages


@dataclass(frozen=True, slots=True)
class Workload:
    seed: int
    cities: int
    turns: int
    sizes: Sizes
    conversations: tuple[Conversation, ...]
    traced: Conversation
    """One more agent with a question of its own, for the request whose way through the system is shown."""

    @property
    def requests(self) -> int:
        return sum(conversation.turns for conversation in self.conversations)

    def describe(self) -> dict[str, Any]:
        return {
            "name": "travel",
            "seed": self.seed,
            "agents": len(self.conversations),
            "cities": self.cities,
            "turns": self.turns,
            "requests": self.requests,
            **asdict(self.sizes),
        }


def travel_workload(
    text: ModelText,
    seed: int,
    agents: int = 50,
    cities: int = 10,
    turns: int = 2,
    output_tokens: int = 150,
    system_tokens: int = 200,
    prompt_tokens: int = 1025,
    question_tokens: int = 25,
) -> Workload:
    """Raises WorkloadError where a size can't be met exactly."""
    if not 1 <= cities <= len(travel_text.CITIES):
        raise WorkloadError(f"cities must be 1 to {len(travel_text.CITIES)}, not {cities}")
    if agents < 1 or turns < 1:
        raise WorkloadError(f"agents and turns must be at least 1, not {agents} and {turns}")
    rng = Random(seed)
    sizes = Sizes(system_tokens, prompt_tokens, question_tokens, output_tokens)
    composer = _Composer(text, rng, sizes)
    system = composer.system_prompt()
    names = rng.sample(travel_text.CITIES, cities)
    notes = {city: composer.hotel_notes(system, city) for city in names}
    # Shuffled: with agents in the cities' order, round robin over as many replicas would sort them by accident.
    assigned = [names[agent % cities] for agent in range(agents)]
    rng.shuffle(assigned)
    conversations = tuple(
        composer.conversation(agent, city, system, notes[city], turns)
        for agent, city in enumerate([*assigned, assigned[0]])
    )
    return Workload(seed, cities, turns, sizes, conversations[:-1], conversations[-1])


class _Composer:
    """Joins sentences until token counts are exact."""

    def __init__(self, text: ModelText, rng: Random, sizes: Sizes) -> None:
        self._text = text
        self._rng = rng
        self._sizes = sizes
        self._used: set[str] = set()

    def system_prompt(self) -> str:
        return self._compose(
            travel_text.guidelines(self._rng),
            lambda: travel_text.guideline(self._rng),
            self._count,
            self._sizes.system_tokens,
            "system prompt",
        )

    def hotel_notes(self, system: str, city: str) -> str:
        """Notes such that a first turn with any question of the right size has exactly the prompt's tokens."""
        question = self._question(travel_text.question, city, lambda _: True)
        return self._compose(
            travel_text.hotel_notes(self._rng, city),
            lambda: travel_text.hotel_note(self._rng, city),
            lambda notes: self._count_prompt(system, notes, question),
            self._sizes.prompt_tokens,
            f"prompt about {city}",
        )

    def conversation(self, agent: int, city: str, system: str, notes: str, turns: int) -> Conversation:
        question = self._question(
            travel_text.question,
            city,
            lambda found: self._count_prompt(system, notes, found) == self._sizes.prompt_tokens,
        )
        follow_ups = tuple(self._question(travel_text.follow_up, city, lambda _: True) for _ in range(turns - 1))
        return Conversation(agent, city, system, _user_content(notes, question), follow_ups)

    def _question(self, draw: Callable[[Random, str], str], city: str, accept: Callable[[str], bool]) -> str:
        for _ in range(_MAX_TRIES):
            question = draw(self._rng, city)
            if question not in self._used and self._count(question) == self._sizes.question_tokens and accept(question):
                self._used.add(question)
                return question
        raise WorkloadError(f"found no question about {city} of exactly {self._sizes.question_tokens} tokens")

    def _compose(
        self, body: Iterator[str], tail: Callable[[], str], count: Callable[[str], int], target: int, what: str
    ) -> str:
        # Whole prompts take a millisecond to count, sentences microseconds: sum these, count near the target.
        base = next(body)
        tokens = count(base)
        for sentence in body:
            tokens += self._count(f" {sentence}")
            if tokens > target * _BODY_SHARE:
                break
            base = f"{base} {sentence}"
        base_tokens = count(base)
        for _ in range(_MAX_TRIES):
            text, tokens = base, base_tokens
            while tokens < target:
                sentence = f" {tail()}"
                text += sentence
                tokens += self._count(sentence)
            if tokens <= target + _SUM_ERROR and count(text) == target:
                return text
        raise WorkloadError(f"found no {what} of exactly {target} tokens")

    def _count(self, content: str) -> int:
        return len(self._text.encode_chat(content))

    def _count_prompt(self, system: str, notes: str, question: str) -> int:
        user = _user_content(notes, question)
        return len(prompt_ids(self._text, [{"role": "system", "content": system}, {"role": "user", "content": user}]))


def _user_content(notes: str, question: str) -> str:
    """The notes come first, so that agents who ask about the same city share them as a prefix."""
    return f"{notes}\n\n{question}"


def prompt_ids(text: ModelText, messages: Sequence[Message]) -> list[int]:
    return text.encode_chat(text.render(messages))


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request as far as KV reuse is concerned."""

    prompt: Sequence[int]
    with_answer: Sequence[int]
    """The prompt and the answer after it."""
    counted: bool = True
    """False for a failed request: it may have filled caches, but nothing was delivered from one."""


def sent_request(text: ModelText, messages: Sequence[Message], answer: str, counted: bool = True) -> SentRequest:
    """The answer's ids come from its text after the rendered prompt, as the next turn's prompt holds it.

    Where these differ from the ids that were generated, no engine can reuse the answer's KV, so the limit is then
    higher than what can be reached.
    """
    rendered = text.render(messages)
    return SentRequest(text.encode_chat(rendered), text.encode_chat(rendered + answer), counted)


def cached_limit(requests: Iterable[SentRequest]) -> int:
    """Prompt tokens that one cache without bounds, shared by the whole fleet, would deliver.

    For each request, in order of sending: the leading whole blocks, at most len - 1 tokens, that any earlier request's
    prompt or answer held. No routing, fleet or eviction can exceed it; simultaneous requests can't reach it unless
    equal prefixes wait for each other.
    """
    seen: set[int] = set()
    limit = 0
    for request in requests:
        hashes = block_hashes(request.prompt, namespace=0)
        if request.counted:
            for block in islice(hashes, (len(request.prompt) - 1) // BLOCK_SIZE):
                if block not in seen:
                    break
                limit += BLOCK_SIZE
        seen.update(hashes)
        seen.update(block_hashes(request.with_answer, namespace=0))
    return limit

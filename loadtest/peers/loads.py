"""Loads with reuse of each kind, and one without, as text: the peers see a prompt's characters only. Pure.

Sizes are in words, of which each is one token to most tokenizers. Rates are for 8 replicas that each compute 5,000
prompt tokens a second, and leave two cores mostly idle.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from loadtest.workload import Conversation, travel_workload
from replica.protocol.text import ModelText

_WORDS = """
about above across after again air all along always animal answer around ask back because before begin below between
book both box build call came change children city close come could country cut day different does door down draw each
earth eat end enough even every example eye face family far father feet few find first follow food form found four
friend from garden give good great group grow hand hard head hear help here high home house idea important island keep
kind know land large last later learn leave left letter life light line list listen little live long look made make
many mark mean might mile money morning mother mountain move much music name near need never new next night number
often old once only open order other over own page paper part people picture place plant play point question quick
rain read river road room run school sea second see sentence set should show side small song sound spell stand start
state still stop story street study sun table take talk tell thing think three through time together took town travel
tree turn under until use very voice walk want watch water way week well while white whole wind window winter with
wood word work world would write year young
""".split()  # noqa: SIM905


@dataclass(frozen=True, slots=True)
class Load:
    name: str
    about: str
    conversations: tuple[Conversation, ...]
    rate_per_s: float
    """At which conversations arrive."""
    output_tokens: int
    think_s: float = 0.0
    """Between an answer and the next turn, on average."""
    has_reuse: bool = True

    @property
    def requests(self) -> int:
        return sum(conversation.turns for conversation in self.conversations)


Build = Callable[[ModelText, int, float], Load]


def agents(text: ModelText, seed: int, size: float) -> Load:
    count = _share(50, size)
    travel = travel_workload(text, seed, agents=count, cities=10, turns=3)
    about = (
        f"{count} agents of the travel assistant, 3 turns: 200 tokens shared by all, 800 by those of one of 10 cities"
    )
    return Load("agents", about, travel.conversations, 5.0, 8, think_s=0.5)


def agents_small(_text: ModelText, seed: int, size: float) -> Load:
    """For replicas that really compute, on few cores."""
    count = _share(20, size)
    travel = travel_workload(_text, seed, agents=count, cities=5, turns=2)
    about = f"{count} agents of the travel assistant, 2 turns, 5 cities"
    return Load("agents", about, travel.conversations, 1.0, 16)


def prefixes(_text: ModelText, seed: int, size: float) -> Load:
    """llm-d's benchmark of precise prefix routing, where 150 customers x 5 users fill 73 % of the fleet's KV memory."""
    rng = Random(seed)
    contexts = [_text_of(rng, 3500) for _ in range(_share(24, size))]
    pairs = [(context, _text_of(rng, 400)) for context in contexts for _ in range(5)]
    rng.shuffle(pairs)
    about = f"{len(contexts)} contexts of 3,500 tokens x 5 queries of 400, shuffled: 73 % of the fleet's KV memory"
    return Load("prefixes", about, _single(pairs), 7.0, 8)


def sessions(_text: ModelText, seed: int, size: float) -> Load:
    rng = Random(seed)
    count = _share(24, size)
    conversations = tuple(
        Conversation(
            number,
            "",
            _text_of(rng, 500),
            _text_of(rng, 1000),
            tuple(_text_of(rng, 400) for _ in range(rng.randint(3, 6))),
        )
        for number in range(count)
    )
    about = f"{count} sessions of 4 to 7 turns: 1,500 tokens, and 400 more each turn"
    return Load("sessions", about, tuple(conversations), 4.0, 8, think_s=0.5)


def giant(_text: ModelText, seed: int, size: float) -> Load:
    rng = Random(seed)
    shared = _text_of(rng, 6000)
    pairs = [(shared, _text_of(rng, 400)) for _ in range(_share(120, size))]
    about = f"{len(pairs)} requests, all with the same 6,000 tokens before 400 of their own"
    return Load("giant", about, _single(pairs), 8.0, 8)


def no_reuse(_text: ModelText, seed: int, size: float) -> Load:
    rng = Random(seed)
    pairs = [(_text_of(rng, 50), _text_of(rng, rng.randint(500, 4000))) for _ in range(_share(120, size))]
    about = f"{len(pairs)} requests of 550 to 4,050 tokens that nothing else holds"
    return Load("no_reuse", about, _single(pairs), 7.0, 8, has_reuse=False)


LOADS: dict[str, Build] = {
    "agents": agents,
    "prefixes": prefixes,
    "sessions": sessions,
    "giant": giant,
    "no_reuse": no_reuse,
}
SMALL_LOADS: dict[str, Build] = {"agents": agents_small}


def _single(pairs: list[tuple[str, str]]) -> tuple[Conversation, ...]:
    return tuple(Conversation(number, "", system, user, ()) for number, (system, user) in enumerate(pairs))


def _share(count: int, size: float) -> int:
    return max(2, round(count * size))


def _text_of(rng: Random, words: int) -> str:
    return " ".join(rng.choices(_WORDS, k=words))

"""Which requests of a replay don't count."""

from dataclasses import dataclass

from loadtest.errors import CompareError


@dataclass(frozen=True, slots=True)
class WarmUp:
    seconds: float = 0.0
    """From the beginning of the run."""
    share: float = 0.0
    """Of the requests, in the plan's order."""

    def is_over(self, number: int, at_s: float, requests: int) -> bool:
        return at_s >= self.seconds and number >= self.share * requests


def parse_warm_up(text: str) -> WarmUp:
    """`20s` or `10%`. Raises CompareError."""
    number, unit = text[:-1], text[-1:]
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if unit == "s" and 0 <= value < float("inf"):
        return WarmUp(seconds=value)
    if unit == "%" and 0 <= value < 100:
        return WarmUp(share=value / 100)
    raise CompareError(f"--warm-up: {text!r} is neither seconds, as in 20s, nor a share of the requests, as in 10%")

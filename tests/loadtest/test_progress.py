from io import StringIO

from rich.console import Console

from loadtest.progress import progress


async def test_elsewhere_than_on_a_terminal_it_is_plain_lines() -> None:
    out = StringIO()
    async with progress(Console(file=out), "ttft: requests", 3) as advance:
        advance()
        advance()
    assert out.getvalue().startswith("ttft: requests: 2/3 after ")
    assert out.getvalue().count("\n") == 1


async def test_on_a_terminal_it_is_a_bar() -> None:
    out = StringIO()
    async with progress(Console(file=out, force_terminal=True, width=80), "ttft", 2) as advance:
        advance()
        advance()
    assert "2/2" in out.getvalue()

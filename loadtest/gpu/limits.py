"""Which parts there are and how long each may take, in seconds on a card: most of it goes to compiling and loading. No
torch here."""

LIMITS_S: dict[str, float] = {
    "peaks": 30,
    "decode": 60,
    "parity": 90,
    "greedy": 60,
    "attention": 60,
    "prefill": 40,
    "decode_8b": 60,
    "workload": 120,
    "small_kernels": 30,
    "prefill_8b": 40,
    "vllm_8b": 120,
}
"""In the order of what matters most, since the whole has a limit as well."""

WHOLE_S = 465.0
GRACE_S = 10.0
"""Beyond its limit, in which a part only ends what it has begun; then it is killed."""

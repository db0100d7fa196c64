"""Cost profiles of engines by name: how long a step takes and how much KV there is, from published figures.

For replicas that compute nothing: the simulator's, and the timing engine's. No torch here.
"""

from dataclasses import dataclass, replace

from replica.protocol.records import CostModel


@dataclass(frozen=True, slots=True)
class Profile:
    """Seconds and tokens. The coefficients are those of `CostModel`."""

    name: str
    source: str
    c0: float
    c_lin: float
    c_att: float
    c_dec: float
    max_step_tokens: int
    max_running: int
    kv_tokens: int
    decode_by_use: tuple[float, float, float] | None = None
    """Coefficients of 1, u and u² for the decodes of a step, all together, where u is the share of KV in use. Stands in
    for c_dec, and in a step without prefill for c0, which remain what is published."""
    decode_floor: float = 0.0

    @property
    def cost(self) -> CostModel:
        """What a heartbeat says."""
        return CostModel(self.c0, self.c_lin, self.c_att, self.c_dec, self.max_step_tokens)

    def step_s(self, tokens: int, attention: float, decoding: int, kv_use: float = 0.0) -> float:
        """Seconds of one step. `tokens` of prompts in chunks, `attention` = Σ u·(n - u/2) over them, `decoding`
        sequences, `kv_use` = share of KV that running sequences hold."""
        prefill = self.c_lin * tokens + self.c_att * attention
        if self.decode_by_use is None:
            return self.c0 + prefill + self.c_dec * decoding
        constant, linear, square = self.decode_by_use
        decodes = max(self.decode_floor, constant + kv_use * (linear + kv_use * square)) if decoding else 0.0
        return decodes + (self.c0 + prefill if tokens else 0.0)

    def faster(self, speed: float) -> "Profile":
        """The same engine on hardware `speed` times as fast."""
        by_use = self.decode_by_use
        return replace(
            self,
            c0=self.c0 / speed,
            c_lin=self.c_lin / speed,
            c_att=self.c_att / speed,
            c_dec=self.c_dec / speed,
            decode_by_use=by_use and (by_use[0] / speed, by_use[1] / speed, by_use[2] / speed),
            decode_floor=self.decode_floor / speed,
        )

    def coarser(self, factor: int) -> "Profile":
        """For prompts of which one token stands for `factor`: a step takes as long as it did for what it stands for.
        c0 and c_dec are of a step, and stay."""
        return replace(
            self,
            c_lin=self.c_lin * factor,
            c_att=self.c_att * factor**2,
            max_step_tokens=max(1, self.max_step_tokens // factor),
            kv_tokens=self.kv_tokens // factor,
        )


def _of_inference_sim(
    name: str,
    what: str,
    prefill_ms: tuple[float, float],
    token_ms: tuple[float, float],
    decode_ms: tuple[float, float],
    kv_tokens: int,
) -> Profile:
    """Ranges as published; their middles are taken."""

    def middle(low_high: tuple[float, float]) -> float:
        return sum(low_high) / 2000

    return Profile(
        name=name,
        source=f"{what}: llm-d-inference-sim's latency-profiles.md, the middle of {prefill_ms} ms + {token_ms} ms a "
        f"token of prefill and {decode_ms} ms a decode. Of one request at a time: by the token 3 to 10 times as slow "
        "as what is measured with full batches. KV: nine tenths of the memory, less 2 bytes a weight",
        c0=middle(prefill_ms),
        c_lin=middle(token_ms),
        c_att=0.0,
        c_dec=0.0001,
        max_step_tokens=8192,
        max_running=256,
        kv_tokens=kv_tokens,
        decode_by_use=(middle(decode_ms), 0.0, 0.0),
    )


_INFERENCE_SIM = (
    _of_inference_sim("h100-8b", "8 B parameters, H100", (25, 40), (0.15, 0.30), (10, 15), 427_000),
    _of_inference_sim("a100-8b", "8 B parameters, A100", (25, 40), (0.30, 0.55), (15, 25), 427_000),
    _of_inference_sim("l40s-8b", "8 B parameters, L40S", (25, 40), (0.65, 1.0), (25, 35), 207_000),
    _of_inference_sim("mi300x-8b", "8 B parameters, MI300X", (25, 40), (0.11, 0.23), (12, 18), 1_196_000),
    _of_inference_sim("h100-70b", "70 B parameters, 8 x H100", (60, 100), (0.40, 0.60), (18, 28), 1_330_000),
    _of_inference_sim("a100-70b", "70 B parameters, 8 x A100", (60, 100), (0.80, 1.3), (28, 45), 1_330_000),
)

PROFILES = {
    profile.name: profile
    for profile in (
        *_INFERENCE_SIM,
        Profile(
            name="h100-qwen3-32b",
            source="Qwen3-32B, vLLM, 2 x H100: 20,480 prompt tokens/s in steps of 8,192 (llm-d blog 2026-08-17) plus "
            "30 ms a step; 307,328 KV tokens (llm-d blog 2025-09-24). A decode reads its KV, 7,000 tokens of 256 KiB, "
            "at 6.7 TB/s",
            c0=0.030,
            c_lin=1 / 20_480,
            c_att=0.0,
            c_dec=0.00027,
            max_step_tokens=8192,
            max_running=256,
            kv_tokens=307_328,
        ),
        # NOTE: its x² is of a prompt from scratch, for which CostModel's attention is x²/2.
        Profile(
            name="dynamo-mocker",
            source="NVIDIA Dynamo's mocker, default polynomial: prefill 4.209989e-7·x² + 1.518344e-2·x + 16.50142 ms, "
            "decode -25.74·u² + 54.01·u + 5.74 ms, at least 1; 16,384 blocks of 64. GPU and model aren't stated",
            c0=0.01650142,
            c_lin=1.518344e-5,
            c_att=2 * 4.209989e-10,
            c_dec=0.0001,
            max_step_tokens=8192,
            max_running=256,
            kv_tokens=1_048_576,
            decode_by_use=(0.00574, 0.05401, -0.02574),
            decode_floor=0.001,
        ),
        Profile(
            name="cpu",
            source="A model of 135 M parameters on one CPU core: 900 prompt tokens/s; a placeholder, not measured",
            c0=0.020,
            c_lin=1 / 900,
            c_att=0.0,
            c_dec=0.002,
            max_step_tokens=256,
            max_running=64,
            kv_tokens=16_384,
        ),
    )
}


class UnknownProfile(ValueError):
    """No profile has this name; the message lists those that exist."""


def find_profile(name: str) -> Profile:
    """Raises UnknownProfile."""
    if name not in PROFILES:
        raise UnknownProfile(f"unknown profile {name!r}; there are {', '.join(sorted(PROFILES))}")
    return PROFILES[name]

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


PROFILES = {
    profile.name: profile
    for profile in (
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

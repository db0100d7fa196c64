"""The engine that computes nothing: the real scheduler and cache, a profile's times, and made-up words."""

import logging
from collections.abc import Sequence as SequenceOf

from replica.cache.manager import KVCache
from replica.engine_base import Clock, SteppingEngine
from replica.profiles import Profile
from replica.protocol.records import CostModel
from replica.scheduler import SchedulerLimits
from replica.sequence import Chunk, Sequence
from replica.step import Sampled, StepWork
from replica.timing.pace import Pace
from replica.timing.words import Words

_LOG = logging.getLogger(__name__)
_LOSS_TOLD_FROM_S = 1.0


class TimingEngine(SteppingEngine):
    def __init__(
        self, profile: Profile, words: Words, pace: Pace, cache: KVCache, limits: SchedulerLimits, clock: Clock
    ) -> None:
        super().__init__(cache, limits, clock)
        self._profile = profile
        self._words = words
        self._pace = pace
        self._tell_at_s = _LOSS_TOLD_FROM_S

    @property
    def cost(self) -> CostModel:
        """The profile's own, and not fitted: so a gateway's prediction is as good as the profile is linear."""
        profile = self._profile
        return CostModel(profile.c0, profile.c_lin, profile.c_att, profile.c_dec, self._limits.max_step_tokens)

    def add(self, sequence: Sequence) -> None:
        if not self._scheduler.has_work:
            self._pace.begin()
        super().add(sequence)

    def _compute(self, chunks: SequenceOf[Chunk], work: StepWork) -> list[tuple[Sequence, Sampled]]:
        sampled = [(chunk.sequence, Sampled(self._words.next(chunk.sequence))) for chunk in chunks if chunk.samples]
        self._pace.wait(self._profile.step_s(work.tokens, work.attention, work.decoding, self._kv_use()))
        if self._pace.lost_s >= self._tell_at_s:
            self._tell_at_s = 2 * self._pace.lost_s
            _LOG.warning("too busy a machine: steps have taken %.1f s longer than the profile's", self._pace.lost_s)
        return sampled

    def _kv_use(self) -> float:
        cache = self._cache
        return 1 - (cache.num_free + cache.num_evictable) / cache.num_pages

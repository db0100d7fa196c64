"""The ranks of a tensor-parallel replica, from settings to an engine that is warm: rank 0's side and the others'."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from replica.config import EngineConfig
from replica.device.build import Ranks, build_engine, build_runner, open_device
from replica.device.load import read_config
from replica.device.parallel.collective import Collective, open_store
from replica.device.parallel.combine import Combiner, check_divides
from replica.device.parallel.follower import Step
from replica.device.parallel.group import START, RankGroup
from replica.device.parallel.lead import LeadingRunner
from replica.device.plan import StepPlan
from replica.device.transfer import current
from replica.device.weights import Shard
from replica.device_config import DeviceConfig
from replica.engine_base import BuiltEngine

_READY_S = 600.0
_LAST_S = 15


@dataclass(frozen=True, slots=True)
class RankSettings:
    """What rank 0 tells the others to begin with."""

    folder: Path
    engine: EngineConfig
    device: DeviceConfig
    vocabulary: int
    port: int
    """Of rank 0's store."""


def build_shared_engine(folder: Path, settings: EngineConfig, on: DeviceConfig) -> BuiltEngine:
    """Rank 0 of the group, which starts the others. Raises ModelFolderError, ConfigError, RankDied."""
    size = on.tensor_parallel
    fields, config = read_config(folder)
    check_divides(size, config, fields.integer("intermediate_size"))
    device, *_ = [open_device(on.of_rank(rank)) for rank in range(size)]
    shard = Shard(0, size)
    group = RankGroup(size, last_s=_LAST_S)
    try:
        group.start()
        store = open_store(0, shard)
        told = RankSettings(folder, settings, on, config.model.vocab_size, store.port)
        group.send(START, told)
        with current(device), group.explaining():
            _limit_threads(settings, device)
            ranks = _meet(Collective(store, shard, device), told.vocabulary)
            built = build_runner(folder, settings, on.of_rank(0), device, ranks)
            group.wait_ready(_READY_S)
            leading = replace(built, runner=LeadingRunner(built.runner, group))
            return replace(build_engine(leading, settings, device), companions=group)
    except BaseException:
        group.close()
        raise


def build_rank(told: RankSettings, rank: int) -> Step[StepPlan]:
    """Any other rank. Raises ModelFolderError, ConfigError."""
    shard, on = Shard(rank, told.device.tensor_parallel), told.device.of_rank(rank)
    device = open_device(on)
    _limit_threads(told.engine, device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    ranks = _meet(Collective(open_store(told.port, shard), shard, device), told.vocabulary)
    return build_runner(told.folder, told.engine, on, device, ranks).runner.run


def _meet(collective: Collective, vocabulary: int) -> Ranks:
    return Ranks(collective.shard, Combiner(collective, vocabulary), collective.least)


def _limit_threads(settings: EngineConfig, device: torch.device) -> None:
    """Of a CPU that plays the device, or all ranks would want all cores."""
    if device.type == "cpu":
        torch.set_num_threads(settings.threads)

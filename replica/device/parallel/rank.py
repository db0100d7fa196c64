"""`python -m replica.device.parallel.rank`: a rank other than 0 of a replica. Started by rank 0 alone."""

import logging
import sys

from replica.config import ConfigError
from replica.device.parallel.build import RankSettings, build_rank
from replica.device.parallel.follower import Role, attach, follow
from replica.device.plan import StepPlan
from replica.protocol.text import ModelFolderError


def main(arguments: list[str]) -> int:
    link, rank = attach(arguments)
    logging.basicConfig(level="INFO", format=f"%(asctime)s %(levelname)s rank {rank} %(name)s: %(message)s")
    return follow(link, rank, Role(RankSettings, StepPlan, build_rank, (ConfigError, ModelFolderError)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

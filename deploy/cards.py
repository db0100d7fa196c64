"""The GPUs of this machine, for replicas that get one each."""

from collections.abc import Mapping


def visible_cards(environ: Mapping[str, str]) -> list[str]:
    """What CUDA_VISIBLE_DEVICES may be for one process: those that it names, or all that torch sees, by number."""
    named = environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []

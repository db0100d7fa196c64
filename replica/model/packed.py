"""Int8 weights, packed once into a file of the cache folder and mapped from then on.

Packing takes a second and leaves every process a copy of its own. Mapped, a model is there at once, and all replicas on
a machine share its pages. The file is written aside and renamed, so two processes that pack at once are two that write
the same bytes. An architecture is built twice when there is no file yet: from weights that record what is asked for,
then from the file.

The file: 8 bytes of magic, the header's CRC-32 and length (u32, little-endian), the header (JSON), then tensors at
multiples of 64 bytes, which is what a vector load wants. Tensors that are fp32 in the model's own files are mapped from
there.
"""

import hashlib
import json
import logging
import os
import struct
import tempfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

import kernels
from replica.model.layers import Int8Linear, Linear
from replica.model.source import cache_folder
from replica.model.weights import Split, WeightFiles, Weights

_LOG = logging.getLogger(__name__)
_MAGIC = b"RYPACKED"
_PREAMBLE = struct.Struct("<8sII")
_ALIGNMENT = 64
_DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.uint8)}
_PREFIX_LENGTH = 24

T = TypeVar("T")


class PackedFileError(ValueError):
    """The file is cut short, is not ours, or lacks a weight."""


def build_packed(folder: Path, build: Callable[[Weights], T]) -> T:
    """What `build` makes of the folder's weights in int8. Raises ModelFolderError.

    Where the file can't be written, the weights are packed in memory.
    """
    files = WeightFiles(folder)
    path = packed_path(files)
    try:
        return build(PackedWeights(files, path))
    except FileNotFoundError:
        _LOG.info("packing the weights of %s", folder)
    except (OSError, PackedFileError) as error:
        _LOG.warning("packing the weights of %s again: %s: %s", folder, path, error)
    recorder = Recorder(files)
    built = build(recorder)
    try:
        write_packed(path, recorder)
        return build(PackedWeights(files, path))
    except (OSError, PackedFileError) as error:
        _LOG.warning("the packed weights of %s stay in this process's memory: %s", folder, error)
        return built


def packed_path(files: WeightFiles) -> Path:
    """Another one once the weights or their layout change."""
    stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files.files]
    key = _digest(json.dumps([kernels.INT8_LAYOUT, stats]))
    return cache_folder() / "packed" / f"{_digest(str(files.folder.resolve()))}-{key}.bin"


class PackedWeights:
    def __init__(self, files: WeightFiles, path: Path) -> None:
        """Raises OSError, PackedFileError."""
        self._files = files
        self._path = path
        header, start = _read_header(path)
        self._tensors: dict[str, Any] = header["tensors"]
        self._sizes: dict[str, list[int]] = header["linears"]
        # Private: written to, a page would be copied; the file never changes.
        self._bytes = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)[start:]

    def load(self, name: str, split: Split = Split.NONE) -> torch.Tensor:
        return self._tensor(name) if name in self._tensors else self._files.load(name)

    def linear(self, names: Sequence[str], bias: torch.Tensor | None = None, split: Split = Split.NONE) -> Linear:
        """Raises PackedFileError where these weights haven't been packed together."""
        key = _linear_key(names)
        if key not in self._sizes:
            raise PackedFileError(f"{key} is missing")
        n, k = self._sizes[key]
        return Int8Linear(kernels.Int8Weight(self._tensor(f"{key}/data"), self._tensor(f"{key}/scale"), n, k), bias)

    def _tensor(self, name: str) -> torch.Tensor:
        entry = self._tensors[name]
        dtype, shape, offset = _DTYPES[entry["dtype"]], entry["shape"], entry["offset"]
        return self._bytes[offset : offset + _num_bytes(dtype, shape)].view(dtype).view(shape)


class Recorder:
    """Packs what is asked for, and remembers it for the file."""

    def __init__(self, files: WeightFiles) -> None:
        self._files = files
        self.tensors: dict[str, torch.Tensor] = {}
        self.sizes: dict[str, list[int]] = {}

    def load(self, name: str, split: Split = Split.NONE) -> torch.Tensor:
        stored = self._files.load_stored(name)
        if stored.dtype == torch.float32:
            return stored.contiguous()
        return self.tensors.setdefault(name, stored.float().contiguous())

    def linear(self, names: Sequence[str], bias: torch.Tensor | None = None, split: Split = Split.NONE) -> Linear:
        key, packed = _linear_key(names), kernels.pack_int8(self._files.load_rows(names))
        self.tensors |= {f"{key}/data": packed.data, f"{key}/scale": packed.scale}
        self.sizes[key] = [packed.n, packed.k]
        return Int8Linear(packed, bias)


def write_packed(path: Path, recorder: Recorder) -> None:
    """Raises OSError."""
    entries: dict[str, Any] = {}
    end = 0
    for name, tensor in recorder.tensors.items():
        entries[name] = {"dtype": str(tensor.dtype), "shape": list(tensor.shape), "offset": end}
        end += _padded(_num_bytes(tensor.dtype, tensor.shape))
    header = json.dumps({"size": end, "linears": recorder.sizes, "tensors": entries}).encode()
    header += b" " * (_padded(_PREAMBLE.size + len(header)) - _PREAMBLE.size - len(header))
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".packing-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_PREAMBLE.pack(_MAGIC, zlib.crc32(header), len(header)) + header)
            for tensor in recorder.tensors.values():
                data = tensor.numpy().reshape(-1).view("uint8")
                file.write(data.data)
                file.write(bytes(_padded(data.size) - data.size))
            file.flush()
            os.fsync(file.fileno())  # so that no crash of the machine leaves a whole file of zeros
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    _remove_outdated(path)


def _remove_outdated(path: Path) -> None:
    """Files of the same folder's earlier weights; who has one mapped keeps it."""
    for other in path.parent.glob(f"{path.name[:_PREFIX_LENGTH]}-*.bin"):
        if other != path:
            other.unlink(missing_ok=True)


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header, and where the tensors start. Raises OSError, PackedFileError."""
    with path.open("rb") as file:
        preamble = file.read(_PREAMBLE.size)
        if len(preamble) < _PREAMBLE.size or not preamble.startswith(_MAGIC):
            raise PackedFileError("it has no header")
        _, checksum, length = _PREAMBLE.unpack(preamble)
        text = file.read(length)
        size = os.fstat(file.fileno()).st_size
    if zlib.crc32(text) != checksum:
        raise PackedFileError("its header is damaged")
    header: dict[str, Any] = json.loads(text)
    start = _PREAMBLE.size + length
    if size != start + header["size"]:
        raise PackedFileError(f"it has {size} bytes instead of {start + header['size']}")
    return header, start


def _linear_key(names: Sequence[str]) -> str:
    return "+".join(names)


def _num_bytes(dtype: torch.dtype, shape: Sequence[int]) -> int:
    return dtype.itemsize * int(torch.Size(shape).numel())


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_PREFIX_LENGTH]

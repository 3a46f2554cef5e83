"""A durable step as files of other programs: DCP's directory, or safetensors as Hugging Face's libraries read them.

``python -m everstep.checkpoint.export --source URL --namespace NS --step N --format dcp|safetensors --to FOLDER_OR_URL``: needs no memory tier and no
job, only the object store. The last line that it prints is a JSON object; the exit code is 0 if all is written. Every shard is compared with its
digest first. One tensor at a time is in memory. What makes the files a checkpoint (``.metadata``, the index) is written last.
"""

from __future__ import annotations

import argparse
import io
import json
import pickle
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import torch
from obstore.exceptions import BaseError
from torch.distributed.checkpoint.filesystem import DEFAULT_SUFFIX, _metadata_fn, _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta

from everstep.checkpoint.contents import Contents, TensorContent
from everstep.checkpoint.fetching import Region
from everstep.checkpoint.object_store import open_store
from everstep.checkpoint.planning import metadata_of
from everstep.checkpoint.reading import StepReader
from everstep.checkpoint.tiers import Tiers
from everstep.checkpoint.torch_parts import dtype_of, memory_of, size_of
from everstep.errors import CheckpointMismatch, CheckpointMissing, EverstepError

_LARGEST_FILE = 5 << 30
_TORCH_SAVED = b"PK\x03\x04"
_SAFE_NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
}


def export(source: str, namespace: str, step: int, form: str, target: str) -> dict[str, Any]:
    """Writes a step below ``target``, a folder or a URL, and tells what: format, files, tensors, bytes, what was left out.

    Raises CheckpointMissing, CheckpointUnreadable, CheckpointMismatch, OSError.
    """
    write = {"dcp": _write_dcp, "safetensors": _write_safetensors}[form]
    tiers = Tiers.from_environment({}, EVERSTEP_DURABLE_URL=source, EVERSTEP_NAMESPACE=namespace)
    try:
        found = tiers.find(step)
        if found is None:
            message = f"the object store has no complete step {step} of namespace {namespace}"
            raise CheckpointMissing(message)
        with tiers.read(found) as reader:
            reader.metadata()
            reader.verify()
            return {"format": form, "namespace": namespace, "step": step, "to": target, **write(reader, _Files(target))}
    finally:
        tiers.close()


class _Files:
    """The target, written one file after the other."""

    def __init__(self, target: str) -> None:
        is_url = "://" in target
        url = target if is_url else Path(target).resolve().as_uri()
        self._store = open_store(url)
        self.names: list[str] = []
        self.nbytes = 0

    def write(self, name: str, parts: Iterator[memoryview | bytes]) -> None:
        try:
            with obstore.open_writer(self._store, name) as file:
                for part in parts:
                    file.write(part)
                    self.nbytes += len(part)
        except BaseError as error:
            message = f"{name} cannot be written: {error}"
            raise OSError(message) from error
        self.names.append(name)

    def told(self) -> dict[str, Any]:
        return {"files": len(self.names), "bytes": self.nbytes}


# ---------------------------------------------------------------------------------------------------------------- DCP


def _write_dcp(reader: StepReader, files: _Files) -> dict[str, Any]:
    """As ``torch.distributed.checkpoint.FileSystemWriter``: one file a shard, ``.metadata`` beside them."""
    contents = reader.metadata()
    stored: dict[MetadataIndex, _StorageInfo] = {}
    for shard in range(contents.world_size):
        name = f"__{shard}_0{DEFAULT_SUFFIX}"
        files.write(name, _items(reader, contents, shard, name, stored))
    metadata: Metadata = replace(metadata_of(contents), storage_data=stored, storage_meta=StorageMeta())
    files.write(_metadata_fn, iter([pickle.dumps(metadata)]))
    return {**files.told(), "tensors": len(contents.tensors), "left_out": 0}


def _items(
    reader: StepReader, contents: Contents, shard: int, file: str, stored: dict[MetadataIndex, _StorageInfo]
) -> Iterator[memoryview | bytes]:
    at = 0
    for name, content in contents.tensors.items():
        for region in _regions(name, content, shard):
            reader.fill([region])
            saved = _torch_saved(region.into)
            stored[MetadataIndex(name, torch.Size(region.chunk))] = _StorageInfo(file, at, len(saved))
            at += len(saved)
            yield saved
    for name, holder in contents.blobs.items():
        if holder == shard:
            blob = reader.blob(name)
            saved = blob if blob.startswith(_TORCH_SAVED) else _torch_saved(blob)
            stored[MetadataIndex(name)] = _StorageInfo(file, at, len(saved))
            at += len(saved)
            yield saved


def _regions(name: str, content: TensorContent, shard: int) -> Iterator[Region]:
    dtype = dtype_of(content.dtype)
    for chunk in content.chunks:
        if chunk.shard == shard:
            nowhere = (0,) * len(chunk.sizes)
            into = torch.empty(chunk.sizes, dtype=dtype)
            yield Region(shard, name, chunk.offsets, chunk.sizes, nowhere, chunk.sizes, dtype, into)


def _torch_saved(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


# ---------------------------------------------------------------------------------------------------------------- safetensors


def _write_safetensors(reader: StepReader, files: _Files) -> dict[str, Any]:
    """``model.safetensors``, or several files and ``model.safetensors.index.json``. Of a state with a ``model``, that alone, under its own names."""
    contents = reader.metadata()
    names = _model_names(contents)
    groups = _groups(contents, names)
    weight_map: dict[str, str] = {}
    total = 0
    for number, group in enumerate(groups, 1):
        file = "model.safetensors" if len(groups) == 1 else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        files.write(file, _safetensors(reader, contents, group))
        weight_map |= dict.fromkeys(group, file)
        total += sum(_nbytes(contents.tensors[name]) for name in group.values())
    if len(groups) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        files.write("model.safetensors.index.json", iter([json.dumps(index, indent=2).encode()]))
    left_out = len(contents.tensors) + len(contents.blobs) - len(names)
    return {**files.told(), "tensors": len(names), "left_out": left_out}


def _model_names(contents: Contents) -> dict[str, str]:
    """Name in the file → name in the step."""
    under_model = {
        ".".join(map(str, path[1:])): name
        for name in contents.tensors
        if len(path := contents.paths.get(name, tuple(name.split(".")))) > 1 and path[0] == "model"
    }
    return under_model or {name: name for name in contents.tensors}


def _groups(contents: Contents, names: Mapping[str, str]) -> list[dict[str, str]]:
    """The tensors of each file, of at most ``_LARGEST_FILE`` bytes unless one tensor alone is larger."""
    groups: list[dict[str, str]] = [{}]
    taken = 0
    for name in sorted(names):
        nbytes = _nbytes(contents.tensors[names[name]])
        if groups[-1] and taken + nbytes > _LARGEST_FILE:
            groups.append({})
            taken = 0
        groups[-1][name] = names[name]
        taken += nbytes
    return groups


def _safetensors(reader: StepReader, contents: Contents, group: Mapping[str, str]) -> Iterator[memoryview | bytes]:
    """Eight bytes of length, a JSON header, the tensors' bytes: https://github.com/huggingface/safetensors#format."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, of_step in group.items():
        content = contents.tensors[of_step]
        end = at + _nbytes(content)
        header[name] = {"dtype": _safe_name(name, content.dtype), "shape": content.size, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for of_step in group.values():
        content = contents.tensors[of_step]
        whole = torch.empty(content.size, dtype=dtype_of(content.dtype))
        reader.fill_tensors({of_step: whole})
        yield memory_of(whole)


def _safe_name(name: str, dtype: str) -> str:
    if dtype not in _SAFE_NAMES:
        message = f"{name!r} is of type {dtype}, which safetensors cannot hold; export the step as dcp"
        raise CheckpointMismatch(message)
    return _SAFE_NAMES[dtype]


def _nbytes(content: TensorContent) -> int:
    return size_of(content.size, dtype_of(content.dtype))


# ---------------------------------------------------------------------------------------------------------------- the program


def main(arguments: Sequence[str], say: Callable[[str], object] = sys.stdout.write) -> int:
    """The exit code: 0, or 1 with the reason on standard error."""
    parser = argparse.ArgumentParser(
        prog="python -m everstep.checkpoint.export", description="A durable step as files of other programs."
    )
    parser.add_argument("--source", required=True, help="the object store's checkpoints, as a URL: file:///…/checkpoints, s3://…")
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--step", required=True, type=int)
    parser.add_argument("--format", required=True, choices=["dcp", "safetensors"])
    parser.add_argument("--to", required=True, help="a folder or a URL")
    asked = parser.parse_args(arguments)
    try:
        told = export(asked.source, asked.namespace, asked.step, asked.format, asked.to)
    except (EverstepError, OSError, ValueError) as error:
        sys.stderr.write(f"step {asked.step} of {asked.namespace} is not exported: {error}\n")
        return 1
    say(json.dumps(told) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

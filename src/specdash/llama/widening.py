"""The demo's model at the cost of a real one: feed-forward layers with more rows, all of them zero.

A row of zeros adds silu(0) * 0 = 0, so the text stays the same. Zeros are holes in the file.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

from specdash.core.errors import InputError
from specdash.llama.gguf import TENSOR_TYPES, GgufHeader, read_one_file
from specdash.system import files


def widen(source: Path, target: Path, rows: int) -> None:
    """Write a model of the same text with so many feed-forward rows. Raises `InputError`, `GgufError` and OSError."""
    facts, data = read_one_file(source), Path(source).read_bytes()
    header = GgufHeader(data, facts.path)
    header.read()
    key = f"{facts.architecture}.feed_forward_length"
    had = facts.values.get(key)
    if not isinstance(had, int) or had > rows:
        raise InputError(f"model {facts.path}: has {had} feed-forward rows")
    spans = {name: data[start:end] for name, (start, end) in header.spans.items()}
    spans[key] = spans[key][:-4] + struct.pack("<I", rows)
    head = struct.pack("<4sIQQ", b"GGUF", header.version, len(facts.tensors), len(spans)) + b"".join(spans.values())
    written: list[tuple[int, bytes]] = []
    read_at, at = header.data_start, 0
    for tensor in facts.tensors:
        wide = ".ffn_" in tensor.name and len(tensor.shape) == 2
        shape = [rows if wide and length == had else length for length in tensor.shape]
        name, block = tensor.name.encode(), TENSOR_TYPES[tensor.kind]
        head += struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head += struct.pack("<IQ", tensor.kind, at)
        old, new = (length // block.per_block * block.block_bytes for length in (tensor.shape[0], shape[0]))
        written += [
            (at + number * new, data[read_at + number * old : read_at + (number + 1) * old])
            for number in range(math.prod(tensor.shape[1:]))
        ]
        read_at += tensor.size + -tensor.size % header.alignment
        at += (size := new * math.prod(shape[1:])) + -size % header.alignment
    head += b"\0" * (-len(head) % header.alignment)
    draft = target.with_name(f"{target.name}.part")
    with files.gone_on_failure(draft):
        with draft.open("wb") as file:
            file.write(head)
            for place, values in written:
                file.seek(len(head) + place)
                file.write(values)
            file.truncate(len(head) + at)
        draft.replace(target)

"""The tensor types of ggml and the file types of llama.cpp, as numbers in a GGUF file name them.

Source: ggml.h and llama.h of llama.cpp b11434; sizes as its `ggml_type_size` and `ggml_blck_size` say them, names as
`llama-quantize` takes them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorType:
    """How elements of a tensor are kept: in blocks of `per_block` elements, each of `block_bytes` bytes."""

    name: str
    per_block: int
    block_bytes: int

    @property
    def bits(self) -> float:
        """Bits an element."""
        return self.block_bytes * 8 / self.per_block


def _types(text: str) -> dict[int, TensorType]:
    rows = (row.split() for row in text.strip().splitlines())
    return {int(number): TensorType(name, int(block), int(size)) for number, name, block, size in rows}


TENSOR_TYPES = _types(
    """
    0  F32      1    4
    1  F16      1    2
    2  Q4_0     32   18
    3  Q4_1     32   20
    6  Q5_0     32   22
    7  Q5_1     32   24
    8  Q8_0     32   34
    9  Q8_1     32   36
    10 Q2_K     256  84
    11 Q3_K     256  110
    12 Q4_K     256  144
    13 Q5_K     256  176
    14 Q6_K     256  210
    15 Q8_K     256  292
    16 IQ2_XXS  256  66
    17 IQ2_XS   256  74
    18 IQ3_XXS  256  98
    19 IQ1_S    256  50
    20 IQ4_NL   32   18
    21 IQ3_S    256  110
    22 IQ2_S    256  82
    23 IQ4_XS   256  136
    24 I8       1    1
    25 I16      1    2
    26 I32      1    4
    27 I64      1    8
    28 F64      1    8
    29 IQ1_M    256  56
    30 BF16     1    2
    34 TQ1_0    256  54
    35 TQ2_0    256  66
    39 MXFP4    32   17
    40 NVFP4    64   36
    41 Q1_0     128  18
    42 Q2_0     64   18
    """
)
"""ggml type number to the type. One that is not here is unknown to b11434: of a fork, or of a newer llama.cpp."""
REMOVED_TYPES: dict[int, str] = {
    4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}  # fmt: skip
"""Types that llama.cpp had once, and refuses now."""
FILE_TYPES: dict[int, tuple[str, int]] = {
    0: ("F32", 0), 1: ("F16", 1), 2: ("Q4_0", 2), 3: ("Q4_1", 3), 7: ("Q8_0", 8), 8: ("Q5_0", 6), 9: ("Q5_1", 7),
    10: ("Q2_K", 10), 11: ("Q3_K_S", 11), 12: ("Q3_K_M", 11), 13: ("Q3_K_L", 11), 14: ("Q4_K_S", 12),
    15: ("Q4_K_M", 12), 16: ("Q5_K_S", 13), 17: ("Q5_K_M", 13), 18: ("Q6_K", 14), 19: ("IQ2_XXS", 16),
    20: ("IQ2_XS", 17), 21: ("Q2_K_S", 10), 22: ("IQ3_XS", 21), 23: ("IQ3_XXS", 18), 24: ("IQ1_S", 19),
    25: ("IQ4_NL", 20), 26: ("IQ3_S", 21), 27: ("IQ3_M", 21), 28: ("IQ2_S", 17), 29: ("IQ2_M", 22),
    30: ("IQ4_XS", 23), 31: ("IQ1_M", 29), 32: ("BF16", 30), 36: ("TQ1_0", 34), 37: ("TQ2_0", 35),
    38: ("MXFP4_MOE", 39), 39: ("NVFP4", 40), 40: ("Q1_0", 41), 41: ("Q2_0", 42),
}  # fmt: skip
"""`general.file_type` to its name and the tensor type that most of its weights have."""
GUESSED = 1024
"""Added to a file type that a program guessed."""


def type_name(kind: int) -> str:
    """Name of a ggml type number, `type N` for one that is not known."""
    known = TENSOR_TYPES.get(kind)
    return known.name if known is not None else REMOVED_TYPES.get(kind, f"type {kind}")

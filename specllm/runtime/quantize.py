"""Writes a GGUF file anew with other number types: what costs less to read costs less to compute."""

from __future__ import annotations

from pathlib import Path

import llama_cpp

from specllm.errors import BadModelFile
from specllm.runtime import log

FILE_TYPES = {  # llama_ftype, and the ggml_type of an output layer in the same numbers
    "q4_0": (llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0, llama_cpp.GGML_TYPE_Q4_0),
    "iq4_nl": (llama_cpp.LLAMA_FTYPE_MOSTLY_IQ4_NL, llama_cpp.GGML_TYPE_IQ4_NL),
    "q4_k": (llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_S, llama_cpp.GGML_TYPE_Q4_K),
    "q8_0": (llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, llama_cpp.GGML_TYPE_Q8_0),
}


def quantize(source: Path, out: Path, file_type: str, *, has_small_output: bool, threads: int = 0) -> None:
    """Writes the model at `source` to `out` with nearly all tensors in `file_type`, a key of FILE_TYPES.

    `has_small_output`: the output layer too, which llama.cpp would keep in more bits: faster, and a little more often wrong.
    Raises BadModelFile where llama.cpp refuses; `out` may then be there in part.
    """
    log.install()
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, of_output = FILE_TYPES[file_type]
    if has_small_output:
        params.output_tensor_type = of_output
    params.allow_requantize = True  # of what is quantized already
    params.nthread = threads
    log.forget_errors()
    code = llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), params)
    if code:
        reasons = log.recent_errors()
        raise BadModelFile(
            f"llama.cpp cannot quantize {source.name} to {file_type}" + (f": {reasons[-1]}" if reasons else ""),
            "check the disk's free space, and the file with `specllm models verify`",
        )

"""Writes a GGUF file anew with other number types: what costs less to read costs less to compute."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
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
    In a process of its own, for llama.cpp cannot be told to stop: Ctrl-C ends that process. Raises BadModelFile where
    llama.cpp refuses. `out` may then be there in part.
    """
    # -P: Python files in the user's folder are none of ours.
    arguments = map(str, (source, out, file_type, int(has_small_output), threads))
    command = [sys.executable, "-P", "-m", "specllm.runtime.quantize", *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as child:
        try:
            _, said = child.communicate()
        except KeyboardInterrupt:
            child.kill()
            child.wait()
            raise
    if child.returncode:
        reason = said.decode(errors="replace").strip() or f"it ended with code {child.returncode}"
        raise BadModelFile(
            f"llama.cpp cannot quantize {source.name} to {file_type}: {reason}",
            "check the disk's free space, and the file with `specllm models verify`",
        )


def main() -> int:
    """What `quantize` runs; says on stderr why it failed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    source, out, file_type, has_small_output, threads = sys.argv[1:]
    log.install()
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, of_output = FILE_TYPES[file_type]
    if int(has_small_output):
        params.output_tensor_type = of_output
    params.allow_requantize = True  # of what is quantized already
    params.nthread = int(threads)
    code = llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(out), params)
    if code:
        print(*log.recent_errors()[-1:], file=sys.stderr)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())

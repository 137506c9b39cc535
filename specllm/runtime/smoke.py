"""Proof that this llama.cpp can decode here: a tiny quantized model, run in a child process that may crash.

A build for another processor, or with AMX kernels in a virtual machine that faults on them, dies of a
signal at the first decode and would take the terminal with it. The child loads `smoke.gguf` (made by
`scripts/make_smoke_model.py`: Q4_0 and Q8_0, rows of 256 numbers, so that every quantized matrix kernel
there is gets its turn), runs 32 tokens as one block and one by one, and compares.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specllm.errors import BackendError
from specllm.runtime.rebuild import rebuild_command

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MODEL = Path(__file__).with_name("smoke.gguf")
WIDTH = 32  # tokens in the block: one full tile of ggml's AMX kernels
N_CTX = 64
N_THREADS = 1  # more wait for each other on a busy machine, and prove nothing more
TOLERANCE = 0.25  # of the logits' deviation: 0 on AVX-512 (2026-11-29), several for a kernel that is wrong
TIMEOUT_S = 120.0  # a cold CUDA build loads for half a minute
ENDED_BY = {  # exit codes that Windows gives for what is a signal elsewhere
    0xC000001D: "SIGILL",
    0xC0000005: "SIGSEGV",
    0xC0000409: "SIGABRT",
}
MEANINGS = {
    "SIGILL": "the build uses an instruction this processor does not run; often AMX in a virtual machine",
    "SIGSEGV": "llama.cpp touched memory that is not its own",
    "SIGABRT": "llama.cpp gave up on a failed check",
    "SIGBUS": "a file became shorter while it was mapped, or the disk failed",
    "SIGKILL": "the system ended it, probably for lack of memory",
    "SIGFPE": "llama.cpp divided by zero",
}


@dataclass(frozen=True, slots=True)
class SmokeReport:
    """What a child process that decoded well had to say."""

    seconds: float  # both decodes, without loading
    deviation: float  # largest difference between block and single tokens, in deviations of the logits
    devices: tuple[str, ...]  # GPUs the model was offered to

    @property
    def summary(self) -> str:
        where = ", ".join(self.devices) or "CPU"
        return f"widths 1 and {WIDTH} on {where}, {self.seconds * 1000:.0f} ms"


def run_smoke_decode(
    backend: str, *, command: Sequence[str] | None = None, timeout_s: float = TIMEOUT_S
) -> SmokeReport:
    """The report of a child process that decoded; raises BackendError with the way out when it could not.

    `command` is the child's command line, by default this module in this Python.
    """
    command = command or (sys.executable, "-P", "-m", "specllm.runtime.smoke", backend)
    hint = f"build llama-cpp-python again for this machine: {rebuild_command(backend)}"
    try:
        child = subprocess.run(command, capture_output=True, timeout=timeout_s, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise BackendError(f"the smoke decode did not end within {timeout_s:g} s", hint) from error
    except OSError as error:
        raise BackendError(
            f"the smoke decode could not be started: {error}", f"check that {command[0]} can be run"
        ) from error
    if child.returncode:
        raise BackendError(_reason(child.returncode, child.stderr.decode("utf-8", errors="replace")), hint)
    try:
        facts = json.loads(child.stdout)
        report = SmokeReport(float(facts["seconds"]), float(facts["deviation"]), tuple(facts["devices"]))
    except (ValueError, KeyError, TypeError) as error:
        raise BackendError("the smoke decode ended well and said nothing that makes sense", hint) from error
    if backend != "cpu" and not report.devices:
        raise BackendError(
            f"llama.cpp finds no GPU, although it was to be built for {backend}",
            f"check the GPU's driver, or build again: {rebuild_command(backend)}",
        )
    return report


def _reason(code: int, errors: str) -> str:
    """Why a child ended, from its exit code and what it said last."""
    name = ENDED_BY.get(code & 0xFFFFFFFF)
    if code < 0 and not name:
        known = {number.value for number in signal.Signals}
        name = signal.Signals(-code).name if -code in known else f"signal {-code}"
    if name:
        meaning = f" ({MEANINGS[name]})" if name in MEANINGS else ""
        return f"llama.cpp crashed in the smoke decode: {name}{meaning}"
    lines = errors.strip().splitlines()
    return f"the smoke decode failed: {lines[-1] if lines else f'exit code {code}'}"


class _SmokeFailure(Exception):
    """The child's own finding, for its last line on stderr."""


def decode_both_ways(backend: str, model: Path = MODEL) -> dict[str, object]:
    """Runs in the child: loads, decodes a block and single tokens, and returns the facts of SmokeReport."""
    import time

    import numpy as np

    from specllm.runtime import log

    log.install()
    import llama_cpp

    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0 if backend == "cpu" else -1
    weights = llama_cpp.llama_model_load_from_file(str(model).encode(), params)
    if not weights:
        raise _SmokeFailure(f"{model.name} does not load: {'; '.join(log.recent_errors()[-1:])}")
    n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(weights))
    tokens = [3 + (7 * place) % (n_vocab - 3) for place in range(WIDTH)]
    started = time.perf_counter()
    block = _logits(weights, tokens, WIDTH, n_vocab)
    singles = _logits(weights, tokens, 1, n_vocab)
    seconds = time.perf_counter() - started
    if not (np.isfinite(block).all() and np.isfinite(singles).all()) or not singles.std():
        raise _SmokeFailure("the logits are not numbers")
    deviation = float(np.abs(block - singles).max() / singles.std())
    if deviation > TOLERANCE:
        raise _SmokeFailure(f"{WIDTH} tokens in one block and one by one give other logits ({deviation:.2f})")
    from specllm.runtime.backend import inspect_backend

    gpus = [device.name for device in inspect_backend().devices if device.is_gpu] if backend != "cpu" else []
    return {"seconds": seconds, "deviation": deviation, "devices": gpus}


def _logits(weights: Any, tokens: list[int], width: int, n_vocab: int) -> npt.NDArray[np.float32]:
    """All rows of logits, (len(tokens), n_vocab), from forwards of `width` tokens in a fresh context."""
    import llama_cpp
    import numpy as np

    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = N_CTX
    params.n_outputs_max = params.n_outputs_max_per_seq = width
    params.n_threads = params.n_threads_batch = N_THREADS
    context = llama_cpp.llama_init_from_model(weights, params)
    if not context:
        raise _SmokeFailure("llama.cpp made no context")
    batch = llama_cpp.llama_batch_init(width, 0, 1)
    rows = []
    for start in range(0, len(tokens), width):
        batch.n_tokens = width
        for place, token in enumerate(tokens[start : start + width]):
            batch.token[place], batch.pos[place] = token, start + place
            batch.n_seq_id[place], batch.seq_id[place][0], batch.logits[place] = 1, 0, 1
        if code := llama_cpp.llama_decode(context, batch):
            raise _SmokeFailure(f"llama_decode failed with {code}")
        rows += [
            np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, place), (n_vocab,)).copy()
            for place in range(width)
        ]
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    return np.stack(rows)


def main(arguments: Sequence[str]) -> int:
    """The child: the facts as JSON on stdout, or its finding on stderr and exit code 1."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash here is an answer: no core file
    try:
        facts = decode_both_ways(arguments[0])
    except (_SmokeFailure, BackendError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

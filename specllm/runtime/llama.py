"""A GGUF file as a `LanguageModel`: weights, one context with one sequence, forward and rollback.

Built on the flat functions of llama.h. Every return value is looked at and becomes an exception; nothing here knows
about drafting or text.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import llama_cpp
import numpy as np

from specllm.config import ContextConfig
from specllm.decoding.protocols import Logits, Token
from specllm.decoding.rollback_trial import N_TRIAL_TOKENS, try_rollback
from specllm.errors import BackendError, BadModelFile, ContextFull, OutOfMemory
from specllm.runtime import interrupt, kernels, log, threadpool
from specllm.runtime.machine import physical_cores
from specllm.runtime.memory import SEQUENCE, Replay, Rollback, RollbackKind, Snapshot, States, Trim
from specllm.runtime.memory_estimate import n_kept_states
from specllm.runtime.pages import drop_mapped_pages
from specllm.runtime.vocab import Vocab

DEFAULT_CTX = 8192  # tokens, where the user says nothing and the model was trained for more

_GGML_TYPES = {
    "f32": llama_cpp.GGML_TYPE_F32, "f16": llama_cpp.GGML_TYPE_F16, "bf16": 30,  # GGML_TYPE_BF16, not exported
    "q4_0": llama_cpp.GGML_TYPE_Q4_0, "q4_1": llama_cpp.GGML_TYPE_Q4_1, "q5_0": llama_cpp.GGML_TYPE_Q5_0,
    "q5_1": llama_cpp.GGML_TYPE_Q5_1, "q8_0": llama_cpp.GGML_TYPE_Q8_0,
}  # fmt: skip
_FLASH_ATTENTION = {
    "auto": llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO,
    "on": llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}
_LOAD_MODES = {  # (use_mmap, use_mlock)
    (False, False): llama_cpp.LLAMA_LOAD_MODE_NONE,
    (True, False): llama_cpp.LLAMA_LOAD_MODE_MMAP,
    (False, True): llama_cpp.LLAMA_LOAD_MODE_MLOCK,
    (True, True): llama_cpp.LLAMA_LOAD_MODE_MMAP_MLOCK,
}


@interrupt.native_callback
def _is_load_wanted(progress: float, user_data: int | None) -> bool:
    return not interrupt.is_abort_requested()


_go_on = llama_cpp.llama_progress_callback(_is_load_wanted)


class Weights:
    """The tensors of one GGUF file (or of all parts of a split one, given the first), and its vocabulary."""

    def __init__(self, path: Path, *, n_gpu_layers: int = 0, use_mmap: bool = True, use_mlock: bool = False,
                 is_vocab_only: bool = False) -> None:  # fmt: skip
        log.install()
        llama_cpp.llama_backend_init()
        kernels.put_in_place()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = n_gpu_layers
        params.load_mode = _LOAD_MODES[use_mmap, use_mlock]
        params.vocab_only = is_vocab_only
        params.progress_callback = _go_on
        self.path = path
        self.n_gpu_layers = n_gpu_layers
        self.is_vocab_only = is_vocab_only
        log.forget_errors()
        self.handle = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self.handle and interrupt.is_abort_requested():
            raise KeyboardInterrupt
        if not self.handle:
            reasons = log.recent_errors()
            text = " ".join(reasons).lower()
            if "alloc" in text or "out of memory" in text:
                raise OutOfMemory(f"{path.name} does not fit in memory: {reasons[-1]}",
                                  "use a smaller quantization, or fewer --gpu-layers")  # fmt: skip
            raise BadModelFile(f"llama.cpp cannot load {path.name}" + (f": {reasons[0]}" if reasons else ""),
                               "check the file with `specllm models verify`, or use a newer llama-cpp-python for a new "
                               "architecture")  # fmt: skip
        if use_mmap and not use_mlock:
            drop_mapped_pages(path)
        self.vocab = Vocab(self.handle)

    @property
    def n_ctx_train(self) -> int:
        # llama.cpp reads nothing else into its own fields where it loads the vocabulary alone.
        known = llama_cpp.llama_model_n_ctx_train(self.handle) or self._metadata(f"{self.architecture}.context_length")
        return int(known or 0)

    @property
    def architecture(self) -> str:
        return self._metadata("general.architecture")

    def _metadata(self, key: str) -> str:
        """A short value of the file's metadata; empty where there is none."""
        value = ctypes.create_string_buffer(64)
        llama_cpp.llama_model_meta_val_str(self.handle, key.encode(), value, len(value))
        return value.value.decode()

    @property
    def n_embd(self) -> int:
        """Numbers that stand for a token in the first layer's input."""
        return int(llama_cpp.llama_model_n_embd(self.handle))

    @property
    def sliding_window(self) -> int:
        """Tokens that some layers look back at most; 0 where all look at everything."""
        return int(llama_cpp.llama_model_n_swa(self.handle))

    @property
    def n_bytes(self) -> int:
        return int(llama_cpp.llama_model_size(self.handle))

    @property
    def is_recurrent(self) -> bool:
        """Whether some of its state cannot be trimmed (recurrent and hybrid architectures)."""
        return bool(llama_cpp.llama_model_is_recurrent(self.handle) or llama_cpp.llama_model_is_hybrid(self.handle))

    @property
    def chat_template(self) -> str | None:
        """The Jinja source the file carries, if it does."""
        template = llama_cpp.llama_model_chat_template(self.handle, None)
        return template.decode("utf-8", errors="replace") if template else None

    def close(self) -> None:
        if self.handle:
            self.vocab.close()
            llama_cpp.llama_model_free(self.handle)
            self.handle = None


class LlamaModel:
    """Implements `protocols.LanguageModel` on one llama.cpp context."""

    def __init__(self, weights: Weights, config: ContextConfig) -> None:
        self.weights = weights
        self.config = config
        self.vocab = weights.vocab
        self.n_vocab = weights.vocab.n_tokens
        threads = config.threads or physical_cores()
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = config.n_ctx or min(weights.n_ctx_train or DEFAULT_CTX, DEFAULT_CTX)
        params.n_batch = min(config.n_batch, params.n_ctx)
        params.n_ubatch = min(config.n_ubatch, params.n_batch)
        params.n_outputs_max = params.n_outputs_max_per_seq = min(config.n_outputs_max, params.n_batch)
        params.n_rs_seq = n_kept_states(params.n_outputs_max, params.n_ubatch)  # 0 where the architecture keeps none
        params.swa_full = True  # the cells before a sliding window stay: a rollback brings the window back over them
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = _GGML_TYPES[config.kv_type]
        params.flash_attn_type = _FLASH_ATTENTION[config.flash_attention]
        params.no_perf = True
        params.abort_callback = ctypes.cast(interrupt.ABORT_FUNCTION, type(params.abort_callback))
        params.abort_callback_data = interrupt.ABORT_DATA
        log.forget_errors()
        self.handle = llama_cpp.llama_init_from_model(weights.handle, params)
        if not self.handle:
            reasons = log.recent_errors()
            because = f": {reasons[-1]}" if reasons else ""
            if "alloc" in " ".join(reasons).lower():
                raise OutOfMemory(f"no memory for a context of {params.n_ctx} tokens{because}",
                                  "use a smaller --ctx, or --kv-type q8_0")  # fmt: skip
            raise BackendError(f"llama.cpp makes no such context for {weights.path.name}{because}",
                               "quantized KV types need --flash-attention on; try the default settings")  # fmt: skip
        self._memory = llama_cpp.llama_get_memory(self.handle)
        # KV caches are padded (to 256 cells), so llama_n_ctx may be more than was asked for; what was asked for holds.
        self.n_ctx = min(int(params.n_ctx), int(llama_cpp.llama_n_ctx_seq(self.handle)))
        self.n_batch = int(llama_cpp.llama_n_batch(self.handle))
        self.n_outputs_max = int(params.n_outputs_max)
        self.threads = threads
        threadpool.attach(self.handle, threads)
        # The kernels count what the CPU computes without them; what a GPU computes they do not see.
        self._kernels = kernels.put_in_place()
        self._may_be_width_independent = (
            bool(self._kernels.instruction_set) and not llama_cpp.llama_supports_gpu_offload()
        )
        self._has_computed = False
        self._make_batch()
        try:
            self._choose_rollback()
        except BaseException:
            self.close()
            raise

    @property
    def rollback_kind(self) -> RollbackKind:
        return self._rollback.kind

    @property
    def is_width_independent(self) -> bool:
        """See `LanguageModel`; true where everything so far ran on specllm's kernels or row by row."""
        return self._has_computed and self._may_be_width_independent

    @property
    def n_past(self) -> int:
        """Tokens now in the KV cache, as llama.cpp itself says."""
        return int(llama_cpp.llama_memory_seq_pos_max(self._memory, SEQUENCE)) + 1

    def forward(self, tokens: Sequence[Token], *, logits: Literal["all", "last", "none"] = "all") -> Logits:
        """See `LanguageModel.forward`. The rows are a view into llama.cpp's buffer until the next forward."""
        n_past = self.n_past
        if n_past + len(tokens) > self.n_ctx:
            raise ContextFull(f"{n_past + len(tokens)} tokens do not fit in a context of {self.n_ctx}",
                              "use a larger --ctx or a shorter prompt")  # fmt: skip
        if not tokens:
            return np.empty((0, self.vocab.n_tokens), dtype=np.float32)
        self._rollback.before_forward(tokens, n_past)
        if logits != "all":
            return self._decode_all(tokens, n_past, is_last_wanted=logits == "last")
        step = min(self.n_batch, self.n_outputs_max)
        if len(tokens) <= step:
            return self._decode(tokens, n_past, n_outputs=len(tokens))
        parts = [
            self._decode(tokens[i : i + step], n_past + i, n_outputs=len(tokens[i : i + step])).copy()
            for i in range(0, len(tokens), step)
        ]
        return np.concatenate(parts)

    def rollback(self, n_past: int) -> None:
        """See `LanguageModel.rollback`."""
        now = self.n_past
        if not 0 <= n_past <= now:
            raise ValueError(f"rollback to {n_past} of {now} tokens")
        if n_past == 0:
            llama_cpp.llama_memory_clear(self._memory, True)
        elif n_past < now:
            self._rollback.to(n_past)

    @property
    def can_copy_cache(self) -> bool:
        """Whether all of its state is written out: not the cells before a sliding window, to which a rollback may return."""
        return self._rollback.kind == "trim" and not self.weights.sliding_window

    def copy_cache(self, other: LlamaModel) -> None:
        """Caches what `other` has cached, a context with the same settings over the same weights, cell by cell."""
        size = llama_cpp.llama_state_seq_get_size_ext(other.handle, SEQUENCE, 0)
        state = (ctypes.c_uint8 * size)()
        n_read = llama_cpp.llama_state_seq_get_data_ext(other.handle, state, size, SEQUENCE, 0)
        self.rollback(0)
        if n_read != size or not llama_cpp.llama_state_seq_set_data_ext(self.handle, state, size, SEQUENCE, 0):
            raise BackendError("llama.cpp could not copy a KV cache", "run `specllm doctor`")

    def close(self) -> None:
        if self.handle:
            llama_cpp.llama_batch_free(self._batch)
            llama_cpp.llama_free(self.handle)
            self.handle = None

    def _choose_rollback(self) -> None:
        """The cheapest way that passes its trial.

        Attention drops cells in one way on every architecture, so that is tried by `specllm doctor` and not in every
        load. How recurrent states are kept and restored differs by architecture and build: five small forwards.
        """
        self._rollback: Rollback
        if not self.weights.is_recurrent and not llama_cpp.llama_n_rs_seq(self.handle):
            self._rollback = Trim(self._memory, self.weights.sliding_window)
            return
        kinds = (States, Snapshot) if llama_cpp.llama_n_rs_seq(self.handle) else (Snapshot,)
        for kind in kinds if self.n_ctx >= N_TRIAL_TOKENS else ():
            self._rollback = kind(self.handle, self._memory, self._feed)
            with contextlib.suppress(BackendError):  # a state that cannot be saved or restored
                if try_rollback(self).is_exact:
                    return
        self._rollback = Replay(self._memory, self._feed)
        llama_cpp.llama_memory_clear(self._memory, True)

    def _feed(self, tokens: Sequence[Token]) -> None:
        self._decode_all(tokens, self.n_past, is_last_wanted=False)

    def _decode_all(self, tokens: Sequence[Token], n_past: int, *, is_last_wanted: bool) -> Logits:
        """Feeds `tokens` in pieces of n_batch; returns (1, n_vocab) for the last one or (0, n_vocab), all of them computed."""
        rows = np.empty((0, self.vocab.n_tokens), dtype=np.float32)
        for i in range(0, len(tokens), self.n_batch):
            piece = tokens[i : i + self.n_batch]
            is_last = i + len(piece) == len(tokens)
            rows = self._decode(piece, n_past + i, n_outputs=int(is_last and is_last_wanted))
        if not is_last_wanted:  # logits are waited for where they are read
            llama_cpp.llama_synchronize(self.handle)
        return rows

    def _decode(self, tokens: Sequence[Token], n_past: int, *, n_outputs: int) -> Logits:
        """One llama_decode of at most n_batch tokens with logits for the last `n_outputs` of them."""
        n = len(tokens)
        self._write_inputs(tokens)
        self._positions[:n] = np.arange(n_past, n_past + n, dtype=np.int32)
        self._wants_logits[:n] = 0
        self._wants_logits[n - n_outputs : n] = 1
        self._batch.n_tokens = n
        n_others = self._kernels.count_others()
        code = None
        try:
            code = llama_cpp.llama_decode(self.handle, self._batch)
        finally:  # also where Ctrl-C is raised before the code arrives here
            if code != 0:
                self._rollback.after_failure()
        if code:
            self._raise_for(code, n)
        self._rollback.after_decode(n)
        self._has_computed = True
        self._may_be_width_independent &= self._kernels.count_others() == n_others
        if not n_outputs:
            return np.empty((0, self.vocab.n_tokens), dtype=np.float32)
        pointer = llama_cpp.llama_get_logits(self.handle)  # waits for the device
        if not pointer:
            raise BackendError("llama.cpp returned no logits", "run `specllm doctor`")
        rows: Logits = np.ctypeslib.as_array(pointer, (n_outputs, self.vocab.n_tokens))
        return rows

    @property
    def _n_embd(self) -> int:
        """Numbers that a token is fed as; 0: as its id."""
        return 0

    def _write_inputs(self, tokens: Sequence[Token]) -> None:
        self._tokens[: len(tokens)] = tokens

    def _raise_for(self, code: int, n: int) -> None:
        if code == 2:  # aborted: only Ctrl-C asks for that
            raise KeyboardInterrupt
        reasons = log.recent_errors()
        because = f": {reasons[-1]}" if reasons else ""
        if code == 1:
            raise ContextFull(f"no room in the KV cache for {n} tokens{because}", "use a larger --ctx")
        if code == -2:
            raise OutOfMemory(f"llama.cpp could not allocate memory for {n} tokens{because}",
                              "use a smaller --ctx or fewer --gpu-layers")  # fmt: skip
        raise BackendError(f"llama_decode failed with {code}{because}", "run `specllm doctor`")

    def _make_batch(self) -> None:
        """A batch whose arrays are written through numpy views, filled once with what never changes."""
        self._batch = llama_cpp.llama_batch_init(self.n_batch, self._n_embd, 1)
        shape = (self.n_batch,)
        if self._n_embd:
            self._embeddings = np.ctypeslib.as_array(self._batch.embd, (self.n_batch, self._n_embd))
        else:
            self._tokens = np.ctypeslib.as_array(self._batch.token, shape)
        self._positions = np.ctypeslib.as_array(self._batch.pos, shape)
        self._wants_logits = np.ctypeslib.as_array(self._batch.logits, shape)
        for i in range(self.n_batch):
            self._batch.n_seq_id[i] = 1
            self._batch.seq_id[i][0] = SEQUENCE

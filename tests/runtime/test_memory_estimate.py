"""The estimate before loading against what llama.cpp then allocates."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from specllm.config import ContextConfig, KvType
from specllm.models.gguf_header import read_header
from specllm.runtime import memory_estimate
from specllm.runtime.llama import LlamaModel, Weights
from specllm.runtime.memory_estimate import MemoryEstimate, estimate, split
from tests import synthetic

MIB = 1 << 20
BUFFER = re.compile(r"(KV|RS|compute) buffer size = +([\d.]+) MiB")
REPACKED = re.compile(r"CPU_(?:REPACK|SPECLLM) model buffer size = +([\d.]+) MiB")


def reported(path: Path, config: ContextConfig, caplog: pytest.LogCaptureFixture) -> dict[str, float]:
    """Bytes by buffer, from llama.cpp's own log of one load."""
    caplog.clear()
    with (
        caplog.at_level(logging.INFO, logger="specllm.llama"),
        closing(Weights(path)) as weights,
        closing(LlamaModel(weights, config)),
    ):
        pass
    sizes = {"KV": 0.0, "RS": 0.0, "compute": 0.0, "repacked": 0.0}
    for line in caplog.messages:
        if found := BUFFER.search(line):
            sizes[found[1]] += float(found[2]) * MIB
        elif found := REPACKED.search(line):
            sizes["repacked"] += float(found[1]) * MIB
    return sizes


@pytest.fixture(scope="module")
def wide_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Proportions of a real model: a feed-forward layer and heads as in Qwen2.5, only smaller."""
    folder = tmp_path_factory.mktemp("wide")
    return synthetic.write_llama(folder / "wide.gguf", n_embd=256, n_ff=1024, extra_tokens=3000)


@pytest.mark.parametrize(
    ("n_ctx", "kv_type", "n_ubatch", "n_outputs_max"),
    [
        (512, "f16", 512, 1),
        (4096, "f16", 512, 17),
        (8192, "f16", 128, 1),
        (4096, "q8_0", 512, 1),
        (2048, "f32", 512, 512),
    ],
)
def test_context_buffers_are_within_a_tenth(
    wide_gguf: Path, caplog: pytest.LogCaptureFixture, n_ctx: int, kv_type: KvType, n_ubatch: int, n_outputs_max: int
) -> None:
    config = ContextConfig(n_ctx=n_ctx, kv_type=kv_type, n_ubatch=n_ubatch, n_outputs_max=n_outputs_max)
    sizes = reported(wide_gguf, config, caplog)
    guess = estimate(read_header(wide_gguf), n_ctx=n_ctx, kv_type=kv_type, n_ubatch=n_ubatch,
                     n_outputs_max=n_outputs_max)  # fmt: skip
    assert guess.kv_bytes == pytest.approx(sizes["KV"], rel=0.01)
    assert guess.kv_bytes + guess.compute_bytes == pytest.approx(sizes["KV"] + sizes["compute"], rel=0.1)


def test_without_flash_attention_the_scores_count(wide_gguf: Path, caplog: pytest.LogCaptureFixture) -> None:
    sizes = reported(wide_gguf, ContextConfig(n_ctx=4096, flash_attention="off"), caplog)
    guess = estimate(read_header(wide_gguf), n_ctx=4096, has_flash_attention=False)
    assert guess.compute_bytes == pytest.approx(sizes["compute"], rel=0.1)


@pytest.mark.parametrize("name", ["mamba", "jamba", "lfm2", "gemma3"])
def test_states_and_windows_take_what_is_allocated(
    name: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    """A sliding window's cache is a whole one; kept states count (8 of `lfm2`, with 17 rows)."""
    path = request.getfixturevalue(f"{name}_gguf")
    sizes = reported(path, ContextConfig(n_ctx=4096, n_outputs_max=17), caplog)
    guess = estimate(read_header(path), n_ctx=4096, n_outputs_max=17)
    assert guess.kv_bytes == pytest.approx(sizes["KV"] + sizes["RS"], abs=0.01 * MIB)  # logged with two decimals


def test_kept_states_count_eight_times(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = synthetic.write_lfm2(tmp_path / "wide.gguf", n_embd=512)
    for n_outputs_max, n_states in ((17, 8), (1, 1)):
        sizes = reported(path, ContextConfig(n_ctx=256, n_outputs_max=n_outputs_max), caplog)
        guess = estimate(read_header(path), n_ctx=256, n_outputs_max=n_outputs_max)
        assert n_states * 512 * 2 * 4 == pytest.approx(sizes["RS"], abs=0.006 * MIB)
        assert guess.kv_bytes == pytest.approx(sizes["KV"] + sizes["RS"], abs=0.006 * MIB)


def test_all_layers_on_a_gpu_leave_vocabulary_and_logits_here(llama_gguf: Path) -> None:
    header = read_header(llama_gguf)
    memory = estimate(header, n_ctx=4096, n_outputs_max=17)
    embedding = synthetic.N_VOCAB * 64 * 4
    assert memory.looked_up_bytes == embedding
    assert split(header, memory, 0) == (memory.total_bytes, 0)
    here, there = split(header, memory, -1)
    assert here == memory.vocabulary_bytes + memory.logits_bytes
    read = estimate(header, n_ctx=4096, n_outputs_max=17, is_mapped=False)
    assert split(header, read, -1) == (here + embedding, there)
    assert there == memory.weight_bytes - embedding + memory.kv_bytes + memory.compute_bytes
    assert split(header, memory, 3) == (here, there)  # two layers and the output layer
    parts = [split(header, memory, n) for n in range(4)]
    assert [part[0] for part in parts] == sorted((part[0] for part in parts), reverse=True)
    assert [part[1] for part in parts] == sorted(part[1] for part in parts)


def test_a_recurrent_state_does_not_grow_with_the_context(mamba_gguf: Path, caplog: pytest.LogCaptureFixture) -> None:
    sizes = reported(mamba_gguf, ContextConfig(n_ctx=4096), caplog)
    header = read_header(mamba_gguf)
    guess = estimate(header, n_ctx=4096)
    assert guess.kv_bytes == pytest.approx(sizes["RS"], abs=0.01 * MIB)  # logged with two decimals
    assert guess.compute_bytes == pytest.approx(sizes["compute"], rel=0.1)
    assert estimate(header, n_ctx=32768).kv_bytes == guess.kv_bytes


def test_repacked_weights_count_twice(caplog: pytest.LogCaptureFixture) -> None:
    path = Path(memory_estimate.__file__).with_name("smoke.gguf")
    sizes = reported(path, ContextConfig(n_ctx=256), caplog)
    assert estimate(read_header(path), n_ctx=256).repacked_bytes == pytest.approx(
        sizes["repacked"], rel=0.05, abs=MIB / 64
    )


def test_logits_are_rows_times_vocabulary(llama_gguf: Path) -> None:
    guess = estimate(read_header(llama_gguf), n_ctx=512, n_outputs_max=17)
    assert guess.logits_bytes == 17 * synthetic.N_VOCAB * 4
    assert guess.weight_bytes == read_header(llama_gguf).weight_bytes


@pytest.mark.parametrize(("drops_originals", "total"), [(False, 54_321), (True, 54_301)])
def test_the_total_is_the_sum_and_counts_a_copy_once_where_its_original_is_dropped(
    monkeypatch: pytest.MonkeyPatch, drops_originals: bool, total: int
) -> None:
    monkeypatch.setattr(memory_estimate, "CAN_DROP_PAGES", drops_originals)
    parts = MemoryEstimate(weight_bytes=1, repacked_bytes=20, kv_bytes=300, compute_bytes=4000, logits_bytes=50_000)
    assert parts.total_bytes == total


def test_what_a_processor_repacks_depends_on_its_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_estimate.platform, "machine", lambda: "arm64")
    assert "Q8_0" in memory_estimate.stock_repacked_types()
    monkeypatch.setattr(memory_estimate.platform, "machine", lambda: "x86_64")
    cases = (
        ({"avx2"}, memory_estimate.REPACKED_AVX2),
        ({"sse4_2"}, frozenset()),
        ({"avx2", "avx512f"}, memory_estimate.REPACKED_AVX512),
        (set(), memory_estimate.REPACKED_AVX2),
    )
    for flags, types in cases:
        monkeypatch.setattr(memory_estimate, "built_extensions", lambda flags=flags: frozenset(flags))
        assert memory_estimate.stock_repacked_types() == types


@pytest.mark.real
@pytest.mark.parametrize("name", ["qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct"])
def test_real_models_take_what_was_estimated(name: str, caplog: pytest.LogCaptureFixture) -> None:
    from specllm.app.models import locate

    path = locate(name).path
    config = ContextConfig(n_ctx=4096, n_outputs_max=17)
    sizes = reported(path, config, caplog)
    guess = estimate(read_header(path), n_ctx=4096, n_outputs_max=17)
    assert guess.repacked_bytes == pytest.approx(sizes["repacked"], rel=0.01)
    assert guess.kv_bytes == pytest.approx(sizes["KV"], rel=0.01)
    assert guess.compute_bytes == pytest.approx(sizes["compute"], rel=0.1)


MEASURE = """
import sys
from pathlib import Path
from specllm.config import ContextConfig
from specllm.runtime.llama import LlamaModel, Weights

def resident_bytes():
    facts = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return [int(facts[name].split()[0]) * 1024 for name in ("RssAnon", "RssFile")]

tiny, path, n_ctx, n_rows = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
LlamaModel(Weights(tiny), ContextConfig(n_ctx=256)).forward([100] * 20)  # what the library itself takes is there before
before = resident_bytes()
model = LlamaModel(Weights(path), ContextConfig(n_ctx=n_ctx, n_outputs_max=n_rows))
model.forward(list(range(100, 612)), logits="none")
model.forward(list(range(100, 100 + n_rows)))
print(*(now - then for now, then in zip(resident_bytes(), before)))
"""


@pytest.mark.real
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")
@pytest.mark.parametrize(
    ("name", "n_ctx"),
    [
        ("qwen2.5-coder-1.5b-instruct", 2048),
        ("qwen2.5-coder-0.5b-instruct", 2048),
        ("gemma-3-270m", 2048),
        ("smollm2-135m-instruct", 8192),
    ],
)
def test_resident_memory_of_real_models_is_within_a_tenth(name: str, n_ctx: int, llama_gguf: Path) -> None:
    """Fault 30, for a target and for a draft model, each in a process of its own: freed memory is used again.

    What the process allocates is estimated within a tenth. What it maps of the file depends on the kernel: Linux 6.18 maps
    whole folios of the page cache around what is read, so anything from what is needed to the whole file may count.
    """
    from specllm.app.models import locate

    path = locate(name).path
    for n_rows in (1, 128):
        child = subprocess.run(
            [sys.executable, "-c", MEASURE, str(llama_gguf), str(path), str(n_ctx), str(n_rows)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        guess = estimate(read_header(path), n_ctx=n_ctx, n_outputs_max=n_rows)
        anonymous, mapped = map(int, child.stdout.split())
        needed = guess.weight_bytes - guess.looked_up_bytes - guess.repacked_bytes
        assert guess.total_bytes - needed == pytest.approx(anonymous, rel=0.1), n_rows
        assert 0.9 * needed <= mapped <= path.stat().st_size, n_rows

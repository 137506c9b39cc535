"""Whole models through llama.cpp: a row's logits have the same bits whatever it is computed with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

from tests import synthetic
from tests.kernels.native import Floats, Kernels

ROOT = Path(__file__).parents[2]
MIXES = {  # llama_ftype
    "f16": llama_cpp.LLAMA_FTYPE_MOSTLY_F16,
    "q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
    "q5_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q5_0,
    "q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
    "q4_k_m": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M,
    "q5_k_m": llama_cpp.LLAMA_FTYPE_MOSTLY_Q5_K_M,
    "iq4_xs": llama_cpp.LLAMA_FTYPE_MOSTLY_IQ4_XS,
}


@pytest.fixture(scope="module")
def plain_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    return synthetic.write_llama(folder / "plain.gguf", n_embd=256, n_ff=512, n_layer=2)


@pytest.fixture(params=[*sorted(MIXES), "f32", "mixture"], scope="module")
def model(request: pytest.FixtureRequest, plain_model: Path) -> Path:
    if request.param == "f32":
        return plain_model
    if request.param == "mixture":
        return synthetic.write_mixture(plain_model.with_name("mixture.gguf"), n_embd=256, n_ff=512)
    out = plain_model.with_name(f"{request.param}.gguf")
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread = MIXES[request.param], 1
    assert llama_cpp.llama_model_quantize(os.fsencode(plain_model), os.fsencode(out), params) == 0
    return out


def logits(model: Path, library: Path, mode: str, instruction_set: str, *, is_independent: bool) -> Floats:
    out = model.with_suffix(f".{mode}.{instruction_set}.npy")
    environment = {
        **os.environ,
        "SPECLLM_KERNELS": mode,
        "SPECLLM_KERNELS_SET": instruction_set,
        "SPECLLM_KERNELS_LIBRARY": str(library),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "tests.kernels.run_model", str(model), str(out), instruction_set,
               str(int(is_independent))]  # fmt: skip
    child = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    readings: Floats = np.load(out)
    return readings


def test_rows_have_the_same_bits_and_are_close_to_stock(model: Path, library_path: Path, sets: list[Kernels]) -> None:
    stock = logits(model, library_path, "off", "", is_independent=False)
    first = None
    for kernels in sets:
        readings = logits(model, library_path, "on", kernels.name, is_independent=True)
        for cache in (readings[:, :2], readings[:, 2:]):  # f16, q8_0; with one thread and with two
            alone = cache[:, :1, :1]
            assert np.array_equal(cache, np.broadcast_to(alone, cache.shape)), kernels.name
        assert first is None or np.array_equal(readings, first), f"{kernels.name} gives other bits than {sets[0].name}"
        first = readings
    assert first is not None
    assert np.abs(first - stock).std() < 0.05 * stock.std()


def test_a_type_without_kernels_is_computed_by_ggml_and_known_to_depend_on_the_width(
    plain_model: Path, library_path: Path, sets: list[Kernels]
) -> None:
    out = plain_model.with_name("q3_k_m.gguf")
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread = llama_cpp.LLAMA_FTYPE_MOSTLY_Q3_K_M, 1
    assert llama_cpp.llama_model_quantize(os.fsencode(plain_model), os.fsencode(out), params) == 0
    assert np.isfinite(logits(out, library_path, "on", sets[0].name, is_independent=False)).all()

"""The doctor's look at model files, and at whether a pair fits, matches, is quick enough and rolls back."""

from __future__ import annotations

import ctypes
import math
import os
import signal
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from specllm.app.doctor import models as doctor_models
from specllm.app.doctor import use_case as doctor
from specllm.app.doctor.diagnosis import Check
from specllm.models.disk import sha256_of
from specllm.models.entries import PathSource
from specllm.models.registry import Registry
from specllm.models.store import RecordedDigest, record_digest
from specllm.runtime import memory
from specllm.runtime.interrupt import native_callback
from tests import synthetic
from tests.app.doctor.doctors import GPU_BUILD, found, install

pytestmark = pytest.mark.usefixtures("quick_smoke_decode")


def test_a_healthy_pair_passes_every_check(llama_gguf: Path, draft_gguf: Path) -> None:
    install(llama_gguf, draft_gguf)
    checks = found()
    assert list(checks) == [
        "python", "libraries", "llama.cpp", "kernels", "devices", "smoke decode", "model target", "model draft", "memory", "pair",
        "target", "draft model", "rollback", "terminal",
    ]  # fmt: skip
    assert [check for check in checks.values() if check.status == "fail"] == []
    assert f"{synthetic.N_VOCAB} shared tokens" in checks["pair"].fact
    assert "target on CPU" in checks["target"].fact
    assert "ms per token" in checks["draft model"].fact
    assert checks["rollback"].fact.startswith("trim")


@pytest.mark.parametrize("write", [synthetic.write_llama, synthetic.write_mamba])
def test_a_model_that_computes_no_numbers_fails(write, tmp_path: Path) -> None:
    install(write(tmp_path / "nan.gguf", noise=math.nan))
    check = found()["target"]
    assert check.status == "fail"
    assert "computes no numbers" in check.fact
    assert "verify" in check.fix


def test_ctrl_c_that_comes_inside_llama_cpp_ends_the_doctor(
    llama_gguf: Path, draft_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python drops what is raised in a function that C called."""

    @ctypes.CFUNCTYPE(None)
    @native_callback
    def log() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    install(llama_gguf, draft_gguf)
    for name in ("_vocabularies", "_measure"):
        with monkeypatch.context() as patch:
            patch.setattr(doctor_models, "closing", lambda opened: log() or closing(opened))
            if name == "_measure":
                patch.setattr(doctor_models, "_vocabularies", lambda *located: Check("pair", "ok", ""))
            with pytest.raises(KeyboardInterrupt):
                found()


def test_a_recurrent_target_is_rolled_back_by_snapshots(mamba_gguf: Path) -> None:
    install(mamba_gguf)
    checks = found()
    assert checks["rollback"].fact.startswith("snapshot")
    assert "a rejection costs" in checks["rollback"].fact
    assert "draft model" not in checks


@pytest.mark.parametrize(("name", "kind"), [("lfm2_gguf", "states"), ("gemma3_gguf", "trim")])
def test_kept_states_and_sliding_windows_are_named(name: str, kind: str, request: pytest.FixtureRequest) -> None:
    install(request.getfixturevalue(name))
    assert found()["rollback"].fact.startswith(kind)


def test_a_rollback_that_leaves_traces_fails(llama_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = memory.Trim.to
    install(llama_gguf)
    monkeypatch.setattr(memory.Trim, "to", lambda self, n_past: right(self, n_past + 1))
    check = found()["rollback"]
    assert check.status == "fail"
    assert "are off by" in check.fact


def test_a_cache_that_refuses_to_drop_is_a_warning(llama_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(llama_gguf)
    monkeypatch.setattr(memory.llama_cpp, "llama_memory_seq_rm", lambda *_: False)
    check = found()["rollback"]
    assert (check.status, check.fix) == ("warn", "use --drafter none with it, or another target")


def test_missing_models_are_a_warning_with_the_command() -> None:
    checks = found()
    names = [name for name in checks if name.startswith("model ")]
    assert len(names) == 2  # the shipped default pair
    for name in names:
        assert checks[name].status == "warn"
        assert checks[name].fix == f"specllm models pull {name.removeprefix('model ')}"
    assert "memory" not in checks


def test_a_draft_model_that_is_not_there_leaves_the_target_to_look_at(llama_gguf: Path) -> None:
    install(llama_gguf, llama_gguf.with_name("gone.gguf"))
    checks = found()
    assert checks["model draft"].status == "warn"
    assert checks["target"].status == "ok"
    assert "pair" not in checks


def test_a_truncated_model_fails(llama_gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(llama_gguf.read_bytes()[:-999])
    install(path)
    checks = found()
    assert checks["model target"].status == "fail"
    assert "truncated" in checks["model target"].fact
    assert checks["memory"].status == "fail"
    assert "target" not in checks


def test_a_file_of_another_size_than_promised_fails(llama_gguf: Path) -> None:
    model = replace(Registry.load().model("smollm2-135m-instruct"), bytes=5)
    folder = Path(os.environ["SPECLLM_MODELS_DIR"])
    folder.mkdir(parents=True)
    (folder / model.file).write_bytes(llama_gguf.read_bytes())
    registry = Registry(models={model.name: model}, default=model.name)
    (check,) = doctor_models.check_files(registry, is_full=False, progress=doctor.NoProgress())
    assert check.status == "fail"
    assert "instead of 5" in check.fact


def test_digests_are_compared_with_what_was_recorded(llama_gguf: Path) -> None:
    digest, n_bytes = sha256_of((llama_gguf,)), llama_gguf.stat().st_size
    model = replace(
        Registry.load().model("gemma-3-270m"), sources=(PathSource(path=llama_gguf),), sha256=digest, bytes=n_bytes
    )
    registry = Registry(models={model.name: model}, default=model.name)

    def check(*, is_full: bool = False) -> Check:
        (one,) = doctor_models.check_files(registry, is_full=is_full, progress=doctor.NoProgress())
        return one

    assert "not looked at" in check().fact
    record_digest(model, RecordedDigest(sha256=digest, bytes=n_bytes))
    assert digest[:12] in check().fact
    assert "as promised" in check(is_full=True).fact
    record_digest(model, RecordedDigest(sha256=digest, bytes=n_bytes + 1))
    assert check().status == "fail"
    record_digest(model, RecordedDigest(sha256="0" * 64, bytes=n_bytes))
    assert check().status == "fail"


def test_a_full_look_finds_a_changed_file(llama_gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "copy.gguf"
    path.write_bytes(llama_gguf.read_bytes())
    install(path)
    assert "recorded now" in found(is_full=True)["model target"].fact
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x55")
    assert found()["model target"].status == "ok"
    assert found(is_full=True)["model target"].status == "fail"


def test_another_vocabulary_is_bridged(llama_gguf: Path, tmp_path: Path) -> None:
    install(llama_gguf, synthetic.write_llama(tmp_path / "other.gguf", extra_tokens=200))
    checks = found()
    assert checks["pair"].status == "ok"
    assert "over text" in checks["pair"].fact


def test_too_little_memory_loads_nothing(llama_gguf: Path, draft_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(llama_gguf, draft_gguf)
    monkeypatch.setattr(doctor_models, "available_memory_bytes", lambda: 1000)
    checks = found()
    assert checks["memory"].status == "warn"
    assert "1 kB are free" in checks["memory"].fact
    assert "target" not in checks
    monkeypatch.setattr(doctor_models, "available_memory_bytes", lambda: None)
    assert "not known" in found()["memory"].fact


def test_a_draft_model_off_the_targets_gpu_is_a_warning(llama_gguf: Path) -> None:
    located = doctor_models.LocatedModel(name="tiny", path=llama_gguf, model=None, sampling={})
    target = doctor_models._Measured(0.010, -1, "trim")

    def speed(*measured: doctor_models._Measured) -> Check:
        return doctor_models._speed("draft model", located, list(measured), GPU_BUILD)

    assert speed(target).fact == "tiny on CUDA0, 10.0 ms per token"
    assert speed(target, doctor_models._Measured(0.002, 3, "trim")).status == "ok"
    assert speed(target, doctor_models._Measured(0.002, 0, "trim")).fix == "use --draft-gpu-layers all"
    assert "cannot pay" in speed(target, doctor_models._Measured(0.011, -1, "trim")).fact


@pytest.mark.parametrize(("kind", "says"), [("none", "take tokens back:"), ("replay", "only start over")])
def test_a_target_without_rollback_is_a_warning(llama_gguf: Path, kind: str, says: str) -> None:
    located = doctor_models.LocatedModel(name="tiny", path=llama_gguf, model=None, sampling={})
    check = doctor_models._rollback(located, doctor_models._Measured(0.01, 0, kind))
    assert (check.status, check.fix) == ("warn", "use --drafter none with it, or another target")
    assert says in check.fact

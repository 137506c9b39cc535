"""Who drafts where no drafter is named: flag > models.toml > auto, from the option to the result."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from specllm.app.bench.use_case import BenchRequest, plan_bench
from specllm.app.generate import GenerateRequest, make_plan
from specllm.app.tune.use_case import TuneRequest, tune
from specllm.config import DRAFTERS, ContextConfig, DraftConfig
from specllm.errors import ConfigError
from specllm.models.registry import Registry
from tests.app.tune.test_tune import Quiet
from tests.cli.conftest import run


@pytest.fixture(autouse=True)
def _models_file(llama_gguf: Path, close_draft_gguf: Path) -> None:
    """A target that is in a pair and one that is not, each with a drafter of its own."""
    file = Path(os.environ["SPECLLM_CONFIG_DIR"]) / "models.toml"
    file.parent.mkdir(parents=True)
    large, small = (
        f'sources = [{{ kind = "path", path = {json.dumps(str(path))} }}]' for path in (llama_gguf, close_draft_gguf)
    )
    file.write_text(
        f"""
[models.large]
{large}
[models.small]
{small}
[models.alone]
{large}
drafter = "lookup"
[models.silent]
{large}
[pairs.both]
target = "large"
draft = "small"
drafter = "model"
[pairs.plain]
target = "silent"
draft = "small"
drafter = "none"
""",
        encoding="utf-8",
    )


def planned(target: str | None = "both", drafter: str = "", **request: object) -> tuple[str, bool]:
    """The effective drafter, and whether there is a draft model for it."""
    draft = DraftConfig(drafter=drafter, draft_length=request.pop("k", None))  # type: ignore[arg-type]
    plan = make_plan(GenerateRequest(prompt="", target=target, sampling={}, draft=draft, **request))  # type: ignore[arg-type]
    assert plan.params()["drafter"] == plan.draft.drafter
    return plan.draft.drafter, plan.draft_model is not None


def test_a_pair_says_who_drafts_and_so_does_its_target_alone():
    assert planned("both") == planned("large") == ("model", True)
    assert planned("plain") == ("none", False)
    assert planned("alone") == ("lookup", False)
    assert planned("small") == ("auto", False)


@pytest.mark.parametrize("drafter", [name for name in DRAFTERS if name not in ("reference", "store")])
def test_a_named_drafter_wins(drafter):
    assert planned("both", drafter) == (drafter, drafter in ("auto", "model"))


def test_other_flags_win_too(llama_gguf):
    assert planned("both", k=0) == ("none", False)
    assert planned("alone", draft_model="small") == ("auto", True)
    assert planned("both", prediction="text") == ("auto", True)
    assert planned("both", "lookup", prediction="text") == ("lookup", False)
    assert planned(str(llama_gguf)) == ("auto", False)


def test_an_entry_that_wants_a_draft_model_needs_one():
    file = Path(os.environ["SPECLLM_CONFIG_DIR"]) / "models.toml"
    file.write_text(file.read_text("utf-8").replace('drafter = "lookup"', 'drafter = "model"'), encoding="utf-8")
    with pytest.raises(ConfigError, match="alone has no draft model"):
        planned("alone")


def test_no_shipped_entry_keeps_auto_from_choosing():
    registry = Registry.load()
    own = {"large", "small", "alone", "silent", "both", "plain"}
    entries = [*registry.models.values(), *registry.pairs.values()]
    assert {entry.drafter for entry in entries if entry.name not in own} == {"auto"}


def test_what_is_measured_does_not_depend_on_who_drafts():
    result = tune(TuneRequest(target="plain", context=ContextConfig(threads=1)), Quiet())
    assert result.draft_cost is not None
    assert result.pair is not None
    assert (result.pair.name, result.pair.drafter) == ("plain", "auto")
    arms, plan = plan_bench(BenchRequest(prompts=(), target="plain"))
    assert [arm.name for arm in arms] == ["none", "auto", "lookup", "model"]
    assert plan.draft_model is not None


@pytest.mark.parametrize(("flags", "drafter"), [((), "model"), (("-d", "lookup"), "lookup"), (("-d", "auto"), "auto")])
def test_the_command_uses_what_models_toml_says(flags, drafter):
    done = run("generate", "the", "-m", "both", "-n", "4", "-t", "0", "--threads", "1", "--json", *flags)
    assert done.code == 0, done.stderr
    assert done.document["params"]["drafter"] == drafter
    assert done.document["result"]["strategy"].startswith(f"{drafter}:")

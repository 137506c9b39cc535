"""The use case behind `specllm edit`: a file and an instruction to a prompt, the reply to the file's new bytes.

Three steps: `prepare` looks at everything that can be wrong before a model is loaded, `answering` opens the answer to
generate, `conclude` makes an edit of it. None of them writes; `app.edit.history.apply_edit` does.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specllm.app.edit.asked import Wish, wishes
from specllm.app.edit.complaints import Complaint, complaints, loses_end, n_lost_at_end
from specllm.app.edit.ends import command_for_ends, is_about_ends_alone
from specllm.app.edit.prompts import DEFAULT_VARIANT, EditPrompt, Region, edit_prompt, variant_named
from specllm.app.edit.region import region_of_lines, region_of_symbol
from specllm.app.edit.reply import lines_of_reply
from specllm.app.edit.restore import reindented, restored, without_name
from specllm.app.generate import Answer, GenerateRequest, answer
from specllm.app.models import locate_pair
from specllm.app.prompt import no_template
from specllm.app.text_file import TextFile, read_text_file
from specllm.config import ContextConfig, DraftConfig, GenerateConfig, GpuLayers
from specllm.errors import BadReply, ConfigError, ContextFull
from specllm.models.gguf_header import read_header

GROWTH_TOKENS = 1024  # room for what an edit adds
# An edit is mostly a copy, which penalties for repetition would spoil; what is set on the command line stands.
_SAMPLING = {"temperature": 0.0, "repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
_MORE_EXACTLY = "say more exactly what to change and where, or use a larger model"
_SMALLER = "edit a part of it: --lines A:B or --symbol NAME"


@dataclass(frozen=True, kw_only=True, slots=True)
class EditRequest:
    """Everything a user asked for."""

    path: Path
    instruction: str
    lines: str | None = None  # a region: A:B
    symbol: str | None = None  # or by name
    contexts: Sequence[Path] = ()  # other files to read first
    encoding: str | None = None  # None: as its bytes say
    variant: str = DEFAULT_VARIANT
    max_tokens: int | None = None  # None: enough for what is edited and more
    is_raw: bool = False  # no chat template
    template_vars: tuple[tuple[str, Any], ...] = ()  # variables of the chat template and their values
    target: str | None = None
    draft_model: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    context: ContextConfig = ContextConfig()
    draft_gpu_layers: GpuLayers = "auto"
    draft: DraftConfig = DraftConfig()
    trace: Path | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """A request whose files were read: what is asked of the model."""

    file: TextFile
    region: Region | None
    prompt: EditPrompt
    request: GenerateRequest
    warnings: tuple[str, ...]
    hint_if_unchanged: str
    asked: frozenset[Wish]  # what else the instruction names


@dataclass(frozen=True, slots=True)
class Edit:
    """A file's new bytes, not written yet."""

    file: TextFile
    data: bytes
    complaints: tuple[Complaint, ...] = ()
    asked: frozenset[Wish] = frozenset()

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(complaint.text for complaint in self.complaints)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Those of the warnings that nobody should apply it over without a look."""
        return tuple(complaint.text for complaint in self.complaints if complaint.is_grave)

    @property
    def name(self) -> str:
        return shown_name(self.file.path)

    @property
    def before(self) -> str:
        """The old text, with its line ends."""
        return self.file.decoded(self.file.data)

    @property
    def after(self) -> str:
        return self.file.decoded(self.data)

    @property
    def mark(self) -> str:
        """The byte order mark that a patch must show; empty in UTF-16 and UTF-32, whose patches are for eyes."""
        return self.file.mark.decode() if self.file.encoding == "utf-8" else ""

    @property
    def is_changed(self) -> bool:
        return self.data != self.file.data

    def rewritten(self, data: bytes) -> Edit:
        """The same edit with other new bytes; raises ConfigError where they are not in the file's encoding."""
        try:
            after = self.file.decoded(data)
        except UnicodeDecodeError as error:
            raise ConfigError(f"this is not {self.file.encoding}: {error}", "save it in the file's encoding") from None
        return replace(self, data=data, complaints=tuple(complaints(self.file.path, self.before, after, self.asked)))


def shown_name(path: Path) -> str:
    """The path as text; bytes in it that are none are replaced."""
    return os.fsencode(path).decode("utf-8", "replace")


def prepare(request: EditRequest) -> Task:
    """Reads the files and words the prompt; raises ConfigError for all that can be known before a model is loaded."""
    if not request.instruction.strip():
        raise ConfigError("there is no instruction", 'say what to change: specllm edit FILE "..."')
    if request.lines and request.symbol:
        raise ConfigError("--lines and --symbol both name the region", "use one of them")
    variant = variant_named(request.variant)
    file = read_text_file(request.path, request.encoding)
    command = command_for_ends(request.instruction, shown_name(request.path))
    step = "use your editor" if file.encoding.startswith(("utf-16", "utf-32")) else f"run {command}"
    if command and is_about_ends_alone(request.instruction):
        raise ConfigError("an edit keeps line ends and the final newline as they are", step)
    region = None
    if request.lines:
        region = region_of_lines(request.lines, len(file.lines))
    elif request.symbol:
        region = region_of_symbol(request.path, file.lines, request.symbol)
    contexts = [(shown_name(path), read_text_file(path).text) for path in request.contexts]
    prompt = edit_prompt(
        variant, shown_name(request.path), file.lines, request.instruction, region=region, contexts=contexts
    )
    hint = f"line ends and the final newline stay as they are; {step}" if command else _MORE_EXACTLY
    asked = wishes(request.instruction)
    return Task(file, region, prompt, _generate_request(request, prompt), tuple(_remarks(request, file)), hint, asked)


def _remarks(request: EditRequest, file: TextFile) -> Iterator[str]:
    name, target = shown_name(file.path), locate_pair(request.target, request.draft_model)[0].path
    if not request.is_raw and not read_header(target).has_chat_template:
        yield no_template(target.name)
    if file.is_guessed:
        yield f"{name} is not UTF-8 and was read as {file.encoding}; --encoding names another"
    if (n_links := file.path.stat().st_nlink) > 1:
        yield f"{name} has {n_links} hard links; the other names keep the old text"


def _generate_request(request: EditRequest, prompt: EditPrompt) -> GenerateRequest:
    # A token of code is 3.5 bytes in Qwen2.5's vocabulary; the estimate of memory needs a number before there is a count.
    most_tokens = len(prompt.prediction.encode(errors="replace")) // 2 + GROWTH_TOKENS
    target, _, _ = locate_pair(request.target, request.draft_model)
    is_raw = request.is_raw or not read_header(target.path).has_chat_template
    return GenerateRequest(
        prompt=f"{prompt.prompt}\n\n" if is_raw else prompt.prompt,  # else the template sets the answer apart
        sources=(request.path, *request.contexts),
        target=request.target,
        draft_model=request.draft_model,
        prediction=prompt.prediction,
        sampling={**_SAMPLING, **request.sampling},
        context=request.context,
        draft_gpu_layers=request.draft_gpu_layers,
        draft=request.draft,
        growth=GROWTH_TOKENS if request.max_tokens is None else None,
        generate=GenerateConfig(
            max_tokens=most_tokens if request.max_tokens is None else request.max_tokens,
            stop=prompt.stop,
            is_raw=is_raw,
            n_typed=0,  # a file's text names no special tokens
            template_vars=request.template_vars,
            answer_start=prompt.answer_start,
            trace=request.trace,
        ),
    )


@contextlib.contextmanager
def answering(task: Task, notice: Callable[[str], None] = lambda text: None) -> Iterator[Answer]:
    """Loads the models; inside, iterate the answer. Raises ContextFull, with numbers, where it cannot become whole."""
    try:
        with answer(task.request, notice) as opened:
            _require_room(opened)
            yield opened
    except ContextFull as error:
        raise ContextFull(error.message, f"{_SMALLER}; or {error.hint}") from None


def _require_room(opened: Answer) -> None:
    """The reply is about as long as what is edited, which is the prediction; at most what -n allows."""
    n_prompt, n_ctx = opened.metrics.n_prompt, opened.plan.context.n_ctx
    n_edited = min(opened.metrics.n_prediction, opened.plan.generate.max_tokens)
    if n_prompt + n_edited > n_ctx:
        raise ContextFull(
            f"the prompt is {n_prompt:,} tokens, the new text about {n_edited:,}, and the context holds {n_ctx:,}",
            f"pass --ctx {n_prompt + 2 * n_edited} if the model was trained for that",
        )


def conclude(task: Task, answered: Answer) -> Edit:
    """The edit that the answer describes; raises BadReply where it describes none, so that half an edit never exists."""
    metrics = answered.metrics
    if answered.finish_reason == "length":
        is_ours = metrics.n_committed >= answered.plan.generate.max_tokens
        step = "pass a larger -n" if is_ours else f"the context of {answered.plan.context.n_ctx:,} tokens is full"
        raise BadReply(f"the new text was cut after {metrics.n_committed:,} tokens", f"{step}; or {_SMALLER}")
    if answered.control_token is not None:
        raise BadReply(
            f"the reply holds the control token {answered.control_token} where text was wanted",
            f"it would be missing in the file: {_SMALLER}, or use another model",
        )
    return edit_from(task, reply_of(task, answered))


def reply_of(task: Task, answered: Answer) -> str:
    """The reply so far, with what was given to the model and what it was stopped at."""
    if answered.spelled:
        return task.prompt.answer_start + answered.spelled
    last = answered.last_round
    return task.prompt.reply(answered.text, is_stopped=last is not None and last.reason == "stop")


def edit_from(task: Task, reply: str) -> Edit:
    """The edit in a whole reply; raises BadReply."""
    file, region, asked = task.file, task.region, task.asked
    new = lines_of_reply(reply)
    remarks: list[Complaint] = []
    first, last = (region.first, region.last) if region else (0, len(file.lines))
    old = file.lines[first:last]
    if not any(map(str.strip, new)):
        new = []
        if not any(map(str.strip, old)):
            new = list(old)
        elif region:
            remarks.append(Complaint("the new text of these lines is empty: they are deleted", "less" not in asked))
        else:
            raise BadReply("the new text is empty", "say the instruction in other words")
    elif not reply.endswith(f"\n{task.prompt.fence}") and loses_end(old, new):
        # The model went on behind that fence, or ended with another one.
        text = "the old text's last line is missing: a fence inside the new text may have cut it"
        remarks.append(Complaint(text, is_grave=True))
    elif region and (n_lost := n_lost_at_end(old, new)):
        remarks.append(Complaint(f"the last {n_lost} of these lines are missing", "less" not in asked))
    new = _as_asked(task, old, new, remarks)
    try:
        data = file.with_lines(first, last, new)
    except UnicodeEncodeError as error:
        character = error.object[error.start]
        raise BadReply(
            f"the new text holds {character!r}, which {file.encoding} does not have",
            "convert the file to UTF-8 first, or ask for other characters",
        ) from None
    edit = Edit(file, data, asked=asked)
    remarks += complaints(file.path, edit.before, edit.after, asked)
    return replace(edit, complaints=tuple(remarks))


def _as_asked(task: Task, old: Sequence[str], new: Sequence[str], remarks: list[Complaint]) -> list[str]:
    """The new lines without what the model did to them by habit; says so in `remarks`."""
    asked = task.asked
    if "name" not in asked and len(named := without_name(old, new, task.file.path)) < len(new):
        remarks.append(Complaint("the file's name on top of the new text was dropped"))
        new = named
    if task.region and (fitted := reindented(old, new, asked)) != new:
        remarks.append(Complaint("the new lines came without their indentation and got it back"))
        new = fitted
    lines, changed = restored(old, new, task.file.lines, asked)
    if changed:
        first = changed[0] + 1 + (task.region.first if task.region else 0)
        remarks.append(
            Complaint(
                f"blanks, quotes or accents that nobody asked to change were put back in {len(changed)} lines, the first is "
                f"line {first}; say so in the instruction where they should change"
            )
        )
    return lines

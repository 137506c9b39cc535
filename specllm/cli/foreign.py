"""What llama.cpp, ollama and others call something that has another name here, to tell those who type it out of habit."""

from __future__ import annotations

from collections.abc import Collection, Iterable

_PROMPT = 'specllm generate "TEXT", with no option before it (in chat --message TEXT, in bench --prompts FILE)'
_DRAFT_LENGTH = "--draft-length (-k)"
_MAX_TOKENS = "--max-tokens (-n)"

WORDS = {  # as typed there: what to type here; a word of ours counts only where the command at hand does not have it
    "-p": _PROMPT,
    "--prompt": _PROMPT,
    "--file": "--prompt-file (-f)",
    "-sys": "--system (-s)",
    "--system-prompt": "--system (-s)",
    "--n-predict": _MAX_TOKENS,
    "--predict": _MAX_TOKENS,
    "--num-predict": _MAX_TOKENS,
    "--max-new-tokens": _MAX_TOKENS,
    "--temp": "--temperature (-t)",
    "--repeat-last-n": "--penalty-last-n",
    "--grammar-file": "--grammar",
    "-j": "--json-schema",
    "-md": "--draft-model",
    "--model-draft": "--draft-model",
    "--draft": _DRAFT_LENGTH,
    "--draft-max": _DRAFT_LENGTH,
    "--draft-n": _DRAFT_LENGTH,
    "--num-draft-tokens": _DRAFT_LENGTH,
    "--num-speculative-tokens": _DRAFT_LENGTH,
    "--draft-p-min": "--confidence",
    "-cd": "--draft-ctx",
    "--ctx-size-draft": "--draft-ctx",
    "-c": "--ctx",
    "--ctx-size": "--ctx (-c)",
    "--num-ctx": "--ctx (-c)",
    "--max-model-len": "--ctx (-c)",
    "-t": "--threads",
    "-tb": "--threads",
    "--threads-batch": "--threads",
    "-ngl": "--gpu-layers",
    "--n-gpu-layers": "--gpu-layers",
    "--num-gpu": "--gpu-layers",
    "-ngld": "--draft-gpu-layers",
    "--gpu-layers-draft": "--draft-gpu-layers",
    "-fa": "--flash-attention",
    "--flash-attn": "--flash-attention",
    "-ctk": "--kv-type",
    "-ctv": "--kv-type",
    "--cache-type-k": "--kv-type",
    "--cache-type-v": "--kv-type",
    "-b": "--batch",
    "--batch-size": "--batch",
    "-ub": "--ubatch",
    "--ubatch-size": "--ubatch",
    "-i": "specllm chat",
    "-cnv": "specllm chat",
    "--conversation": "specllm chat",
    "--interactive": "specllm chat",
    "--hf-repo": "-m hub:owner/repo:file.gguf",
    "run": "specllm chat -m MODEL",
    "pull": "specllm models pull NAME",
    "list": "specllm models list",
    "ls": "specllm models list",
    "show": "specllm models show NAME",
    "benchmark": "specllm bench",
}


def did_you_mean(arguments: Iterable[str], own_options: Collection[str]) -> str:
    """A hint where one of a command's arguments is another tool's word, "" otherwise.

    Letters behind one dash are a word too: taken for our options, `-ngl 99` would be `-n gl`.
    """
    for argument in arguments:
        word = argument.partition("=")[0]
        if word in WORDS and word not in own_options:
            return f"did you mean {WORDS[word]}?"
    return ""

"""The `specllm` command: groups, global options, and the edge where exceptions become messages and exit codes."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from specllm import __version__
from specllm.cli import envelope
from specllm.cli.doctor import doctor
from specllm.cli.generate import generate
from specllm.cli.models import app as models_app
from specllm.errors import AnswerIsNo, Interrupted, SpecllmError

BUG = 70  # EX_SOFTWARE
INTERRUPTED = 130

app = typer.Typer(
    name="specllm",
    help="Local speculative decoding on llama.cpp: the same text, never slower, and you can see why.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(generate)
app.add_typer(models_app, name="models")
app.command()(doctor)


def _version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"specllm {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, help="Log to stderr; -vv also what llama.cpp says.")
    ] = 0,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    if verbose:
        import logging

        logging.basicConfig(
            level=logging.DEBUG if verbose > 1 else logging.INFO,
            format="%(levelname)s %(name)s: %(message)s",
            stream=sys.stderr,
        )
        for noisy in ("httpx", "httpcore", "urllib3", "filelock"):
            logging.getLogger(noisy).setLevel(logging.WARNING)


def run(arguments: list[str] | None = None) -> None:
    """The console entry point: always ends in SystemExit with a code of design section "exit codes"."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a pipe in cp1252 must not end a generation at its first emoji
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (`| head`) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    is_debug = "--debug" in arguments
    try:
        code = app(arguments, prog_name="specllm", standalone_mode=False)
        if code == INTERRUPTED:  # typer's word for a KeyboardInterrupt that came through
            return _fail(arguments, Interrupted("interrupted"), INTERRUPTED)
        return code if isinstance(code, int) else 0
    except Interrupted as error:  # everything up to there has been printed
        return error.exit_code
    except AnswerIsNo as error:  # the document has been printed
        return _fail(arguments, error, error.exit_code, hint=error.hint, is_printed=True)
    except SpecllmError as error:
        if is_debug:
            raise
        return _fail(arguments, error, error.exit_code, hint=error.hint)
    except typer.TyperException as error:
        return _usage_error(arguments, error)
    except typer.Abort:
        return _fail(arguments, Interrupted("interrupted"), INTERRUPTED)
    except (BrokenPipeError, SystemExit):
        raise
    except MemoryError as error:
        return _fail(arguments, error, 1, message="out of memory", hint="use a smaller model or a smaller --ctx")
    except Exception as error:
        if is_debug:
            raise
        message = f"a bug in specllm: {type(error).__name__}: {error}"
        return _fail(arguments, error, BUG, message=message, hint="run again with --debug and report the traceback")


def _usage_error(arguments: list[str], error: typer.TyperException) -> int:
    context: Any = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message())
        return 0
    path = context.command_path if context else "specllm"
    return _fail(arguments, error, 2, message=_sentence(error.format_message()), hint=f"see `{path} --help`")


def _sentence(message: str) -> str:
    return message[:1].lower() + message[1:].rstrip(".") if message else "bad arguments"


def _fail(
    arguments: list[str],
    error: BaseException,
    code: int,
    *,
    message: str = "",
    hint: str = "",
    is_printed: bool = False,
) -> int:
    """Says what went wrong on stderr and, with --json, in the document on stdout."""
    message = message or str(error)
    if "--json" in arguments and not is_printed:
        command = " ".join(word for word in arguments[:2] if word.isidentifier()) or "specllm"
        envelope.emit_error(command, type(error).__name__, message, hint)
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    return code


if __name__ == "__main__":
    run()

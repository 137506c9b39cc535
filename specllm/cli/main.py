"""The `specllm` command: groups, global options, and the edge where exceptions become messages and exit codes."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import signal
import sys
from collections.abc import Iterator
from typing import Annotated, Any, NoReturn

import typer

from specllm import __version__
from specllm.cli import envelope, options
from specllm.cli.bench import bench
from specllm.cli.chat import chat
from specllm.cli.doctor import doctor
from specllm.cli.edit import edit
from specllm.cli.foreign import did_you_mean
from specllm.cli.generate import generate
from specllm.cli.logs import log_to_stderr
from specllm.cli.models import app as models_app
from specllm.cli.replay import replay
from specllm.cli.signals import treat_termination_as_ctrl_c
from specllm.cli.store import app as store_app
from specllm.cli.tune import tune
from specllm.errors import (
    AnswerIsNo,
    BackendError,
    ConfigError,
    Interrupted,
    ModelNotFound,
    OutOfMemory,
    SpecllmError,
    StorageError,
)

BUG = 70  # EX_SOFTWARE
PROGRAM = "specllm"
FIRST_PAIR = "qwen2.5-coder-1.5b"  # the default of models.toml, which --help does not read
COMPLETION = "_SPECLLM_COMPLETE"  # the variable typer's completion scripts set

app = typer.Typer(
    name="specllm",
    help="Local speculative decoding on llama.cpp: the same text, never slower.",
    epilog=f"To begin: specllm models pull {FIRST_PAIR}, then specllm chat",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(cls=options.Command)(generate)
app.command(cls=options.Command)(chat)
app.command(cls=options.Command)(edit)
app.command(cls=options.Command)(bench)
app.command()(replay)
app.add_typer(models_app, name="models")
app.add_typer(store_app, name="store")
app.command()(doctor)
app.command(cls=options.Command)(tune)


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
        int,
        typer.Option(
            "--verbose", "-v", count=True, callback=log_to_stderr, show_default=False,
            help="Log to stderr; -vv also what llama.cpp says.",
        ),
    ] = 0,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:  # fmt: skip
    """Global options act by their callbacks; every command takes them too."""


def command_tree() -> Any:
    """The root command; -v and --debug are understood behind a command's name as well as before it."""
    root: Any = typer.main.get_command(app)
    everywhere = [copy.copy(option) for option in root.params if option.name in ("verbose", "debug")]
    for option in root.params:
        option.hidden = option.name == "show_completion"  # for packagers; without its lines the help fits 24 rows
    for option in everywhere:
        option.expose_value = False
    for command in _leaves(root):
        command.params += everywhere
    return root


def _leaves(command: Any) -> Iterator[Any]:
    for below in getattr(command, "commands", {}).values():
        yield from _leaves(below) if hasattr(below, "commands") else [below]


class Invocation:
    """One call of the command: its arguments, and how its failures are told."""

    def __init__(self, arguments: list[str]) -> None:
        self.arguments = arguments
        self._flags = arguments[: arguments.index("--")] if "--" in arguments else arguments
        self.wants_json = "--json" in self._flags
        self.is_debug = "--debug" in self._flags

    @functools.cached_property
    def root(self) -> Any:
        return command_tree()

    @property
    def name(self) -> str:
        """Which command was meant, e.g. `models pull`; `specllm` where there is none of that name."""
        return " ".join(self._command[0]) or PROGRAM

    @property
    def _command(self) -> tuple[list[str], Any]:
        """The words of the command's name, as far as there is one, and what has that name: a command or a group of them."""
        words, command = [], self.root
        for argument in self._flags:
            if argument.startswith("-"):  # options before a command's name are flags
                continue
            below = getattr(command, "commands", {}).get(argument)
            if below is None:
                break
            words.append(argument)
            command = below
        return words, command

    def _other_tools_word(self) -> str:
        """A hint where an option, or the command, is what another tool calls it; "" otherwise."""
        words, command = self._command
        options = [argument for argument in self._flags if argument.startswith("-")]
        if not hasattr(command, "commands"):
            return did_you_mean(options, {name for option in command.params for name in option.opts})
        names = [argument for argument in self._flags if argument not in options]
        return did_you_mean(names[len(words) :][:1], command.commands)

    def run(self) -> int:
        """Runs the command; the exit code. Whatever failed has been told, but for a reader that went away."""
        try:
            self._invoke()
        except typer.Exit as done:
            return done.exit_code
        except Interrupted as error:  # everything up to there has been printed
            return error.exit_code
        except (KeyboardInterrupt, typer.Abort):
            return self.fail(Interrupted("interrupted"))
        except BrokenPipeError:
            raise
        except Exception as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                print(error)
                return 0
            return self.fail(_expected(error) or error)
        return 0

    def _invoke(self) -> None:
        if COMPLETION in os.environ:  # the shell asks, and does not run anything
            self.root.main(self.arguments, prog_name=PROGRAM)
        # Not by main() otherwise: it turns Ctrl-C and a closed pipe into exits of its own.
        with self.root.make_context(PROGRAM, list(self.arguments)) as context:
            self.root.invoke(context)

    def fail(self, error: BaseException) -> int:
        """Says what went wrong on stderr and, with --json, in the document on stdout; the exit code."""
        if isinstance(error, SpecllmError):
            message, hint, code = error.message, error.hint, error.exit_code
            if isinstance(error, ConfigError | ModelNotFound):
                hint = self._other_tools_word() or hint
        else:
            message, code = f"a bug in specllm: {type(error).__name__}: {error}", BUG
            hint = "report the traceback above" if self.is_debug else "run again with --debug and report the traceback"
        if self.wants_json and not isinstance(error, AnswerIsNo):  # a "no" is in the document already
            with contextlib.suppress(OSError):
                envelope.emit_error(self.name, type(error).__name__, message, hint)
        with contextlib.suppress(OSError):
            from specllm.ui.console import harmless, write_error

            if self.is_debug:
                import traceback

                print(harmless("".join(traceback.format_exception(error))), end="", file=sys.stderr)
            write_error(message, hint)
        return code


def _expected(error: Exception) -> SpecllmError | None:
    """The failure a foreign exception stands for; None where only a bug can raise it."""
    if hasattr(error, "format_message"):  # a usage error of typer, whose classes differ between its versions
        context = getattr(error, "ctx", None)
        message = error.format_message().rstrip(".") or "bad arguments"
        path = context.command_path if context else PROGRAM
        return ConfigError(message[:1].lower() + message[1:], f"see `{path} --help`")
    if isinstance(error, MemoryError):
        return OutOfMemory("out of memory", "use a smaller model or a smaller --ctx")
    if isinstance(error, ModuleNotFoundError) and error.name == "llama_cpp":
        return BackendError("llama-cpp-python is not installed", "scripts/setup builds it; or pip install specllm-cli")
    if isinstance(error, OSError) and error.errno is not None:
        if error.filename is None:  # nothing but standard output is written here without a name
            return _lost_output(error)
        return StorageError(
            f"{error.filename}: {error.strerror}", "check that it is there, its permissions and free space"
        )
    return None


def _lost_output(error: OSError) -> StorageError:
    return StorageError(f"cannot write the output: {error.strerror}", "send it to a place with free space")


def run(arguments: list[str] | None = None) -> NoReturn:
    """The console entry point: always ends in SystemExit with a code of design section "exit codes"."""
    _open_standard_streams()
    envelope.forget()
    termination = treat_termination_as_ctrl_c()
    invocation = Invocation(sys.argv[1:] if arguments is None else arguments)
    try:
        code = invocation.run()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (`| head`) has seen enough
        code = 0
    except KeyboardInterrupt:  # a second one, while the first was dealt with
        code = Interrupted.exit_code
    except OSError as error:
        code = invocation.fail(_lost_output(error))
    _discard_lost_output()
    if termination:
        signal.signal(termination[0], signal.SIG_DFL)
        os.kill(os.getpid(), termination[0])  # so that the parent sees what ended it
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is left to tell about
    sys.exit(code)


def _open_standard_streams() -> None:
    """stdin, stdout and stderr exist and never fail for an encoding: a cp1252 pipe must not end an answer at an emoji."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # closed by `<&-`: else the next file opened would become it
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _discard_lost_output() -> None:
    """What could not be written is dropped: at exit Python would try again, and complain."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    run()

"""The entry point: imports the rest inside a `try`, so that Ctrl-C is quiet from the first moment on."""

import sys

# What `envelope.emit_error` would print, before that can be imported.
_INTERRUPTED = (
    '{"schema": 1, "command": "specllm", "ok": false, '
    '"error": {"type": "Interrupted", "message": "interrupted", "hint": ""}}\n'
)


def main() -> None:
    try:
        from specllm.cli.main import run
    except KeyboardInterrupt:
        if "--json" in sys.argv:
            sys.stdout.write(_INTERRUPTED)
        sys.stderr.write("error: interrupted\n")
        sys.exit(130)
    try:
        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()

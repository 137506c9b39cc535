"""The entry point: imports the rest inside a `try`, so that Ctrl-C is quiet from the first moment on."""

import sys


def main() -> None:
    try:
        from specllm.cli.main import run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()

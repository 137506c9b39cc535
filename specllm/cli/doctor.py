"""`specllm doctor`: does everything work here, and if not, what to do."""

from __future__ import annotations

from typing import Annotated

import typer

from specllm.cli.envelope import emit
from specllm.errors import AnswerIsNo


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Read whole model files for their SHA-256.")] = False,
) -> None:
    """Check this machine, the build of llama.cpp and the models. Exit code 3 if something fails."""
    from specllm.app.doctor.diagnosis import Diagnosis, counted
    from specllm.app.doctor.use_case import diagnose
    from specllm.ui.doctor import describe_terminal, print_checks

    checks = diagnose(describe_terminal(), is_full=full)
    diagnosis = Diagnosis(tuple(checks) if json else print_checks(checks))
    if json:
        emit("doctor", diagnosis.as_result(), params={"full": full}, is_ok=diagnosis.is_ok)
    if not diagnosis.is_ok:
        failed = diagnosis.failed
        names = ", ".join(check.name for check in failed)
        raise AnswerIsNo(f"{counted(len(failed), 'check')} failed: {names}", failed[0].fix)

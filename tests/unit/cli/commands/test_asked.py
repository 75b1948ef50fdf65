"""What a run has needed people for, as operators read it."""

from dataclasses import replace
from datetime import UTC, datetime

from app.approvals.records import ApprovalAnswer, ApprovalState
from app.approvals.rules import DeedKind
from app.cli.commands.runs import lines_of
from app.operators.records import as_row
from tests.building import make_run
from tests.contract.test_approval_stores import asked


def test_each_is_a_line_and_a_question_is_not_quoted() -> None:
    """With who answered; a run that asked nothing has none."""
    answer = ApprovalAnswer(user="U9", is_allowed=True, at=datetime.now(UTC), text="a name")
    used = replace(asked(), state=ApprovalState.USED, answers=(answer,))
    question = replace(asked(kind=DeedKind.QUESTION, target="which secret?", rule=""))
    row = as_row(make_run(), [used, question])
    lines = [line for line in lines_of(row) if line.startswith("asked")]
    assert lines == [
        "asked          tool linear.create_issue: used by U9",
        "asked          question: waiting",
    ]
    assert "secret" not in str(row)
    assert "a name" not in str(row)
    assert as_row(make_run())["asked"] == []

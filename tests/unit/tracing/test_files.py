"""Files of a run in its trace."""

import pytest

from app.redaction import Masker
from app.runs.testing import AttachedFile, SharedFile
from app.tracing.observations import SpanSanitizer

FILES = (
    AttachedFile(id="F1", name="a hunter22222.csv", size=7),
    SharedFile(id="F2", name="b", size=8),
)


@pytest.mark.parametrize(
    ("trace_content", "told"),
    [
        (True, [{"bytes": 7, "name": "a [redacted:secret].csv"}, {"bytes": 8, "name": "b"}]),
        (False, [{"bytes": 7}, {"bytes": 8}]),
    ],
)
def test_files_are_told_by_size_and_where_content_is_traced_by_name(
    trace_content: bool, told: list[dict[str, object]]
) -> None:
    """Masked; nothing where there is none."""
    sanitizer = SpanSanitizer(masker=Masker(["hunter22222"]), trace_content=trace_content)
    assert sanitizer.files(FILES) == told
    assert sanitizer.files(()) is None

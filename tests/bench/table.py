"""The result: one aligned table of plain text, and the same as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

HEADINGS = ("figure", "Orion", "baseline", "ratio", "target", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    figure: str
    unit: str
    orion: float
    baseline: float | None = None
    sign: Literal["<=", ">="] = "<="
    target: float | None = None
    """None: shown for comparison, not judged."""

    @property
    def is_met(self) -> bool | None:
        if self.target is None:
            return None
        return self.orion <= self.target if self.sign == "<=" else self.orion >= self.target

    @property
    def cells(self) -> tuple[str, ...]:
        has_ratio = self.baseline is not None and self.baseline > 0
        verdicts = {True: "ok", False: "MISS", None: ""}
        return (
            self.figure,
            amount(self.orion, self.unit),
            "-" if self.baseline is None else amount(self.baseline, self.unit),
            f"{self.orion / (self.baseline or 1):.2f}" if has_ratio else "-",
            "-" if self.target is None else f"{self.sign} {amount(self.target, self.unit)}",
            verdicts[self.is_met],
        )


def amount(value: float, unit: str) -> str:
    """Three significant places, no decimals from 100 on."""
    decimals = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 10 else 2
    return f"{value:.{decimals}f} {unit}"


def render(rows: Sequence[Row]) -> str:
    """The table with its heading."""
    lines = [HEADINGS, *(row.cells for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    return "\n".join(_line(cells, widths) for cells in [lines[0], _rule(widths), *lines[1:]])


def render_json(rows: Sequence[Row]) -> str:
    """The rows as a JSON array, one object a line, with the fields of `Row`."""
    lines = ",\n".join(json.dumps(asdict(row)) for row in rows)
    return f"[\n{lines}\n]\n" if rows else "[]\n"


def _rule(widths: Sequence[int]) -> tuple[str, ...]:
    return tuple("-" * width for width in widths)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    aligned = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
    return "  ".join(aligned).rstrip()

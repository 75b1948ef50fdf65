"""What `orion tui` is compared with: a bare Textual app with one table of two hundred rows that nothing changes, `python -m tests.bench.bare_screen`.

`f` opens a box to write in below it, Tab another table in its place, as in Orion's.
"""

from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Input
from typing_extensions import override

ROWS = 200


class BareScreen(App[None]):
    CSS = "DataTable { height: 1fr; } .hidden { display: none; } Input { border: none; height: 1; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "turn", "Turn", priority=True),
        Binding("f", "filter", "Filter"),
    ]

    @override
    def compose(self) -> ComposeResult:
        yield DataTable[str](id="runs", cursor_type="row", zebra_stripes=True)
        yield DataTable[str](id="sandboxes", cursor_type="row", classes="hidden")
        yield Input(placeholder="state=failed", classes="hidden")
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        table, other = self._tables
        table.add_columns("State", "Asked", "By", "Agent")
        for number in range(ROWS, 0, -1):
            table.add_row("succeeded", f"No. {number}: {'a question ' * 4}", "U1", "claude")
        other.add_columns("Thread", "Region")
        table.focus()

    @property
    def _tables(self) -> tuple[DataTable[str], DataTable[str]]:
        return self.query_one("#runs", DataTable), self.query_one("#sandboxes", DataTable)

    def action_turn(self) -> None:
        for table in self._tables:
            table.toggle_class("hidden")
            if not table.has_class("hidden"):
                table.focus()

    def action_filter(self) -> None:
        self.query_one(Input).remove_class("hidden").focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.input.add_class("hidden")
        self._tables[0].focus()


if __name__ == "__main__":
    BareScreen().run()

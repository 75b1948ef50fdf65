"""The screens of `orion tui`."""

import asyncio
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rich.style import Style
from rich.text import Text
from textual import work
from textual.actions import SkipAction
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import DataTable, Input, Static
from textual.worker import Worker
from typing_extensions import override

from app.cli.tui.office import LACKING, FilterError, Office, plain, read_filter
from app.cli.tui.windows import (
    LOOK_S,
    Ask,
    Detail,
    Facts,
    Keys,
    Lines,
    SetUp,
    Sure,
    sandbox_lines,
    tell_failure,
)
from app.store.runs import RunQuery

if TYPE_CHECKING:
    from app.cli.commands.terminal import Print

PROVIDERS_LOOK_S: Final = 15.0
"""Between two looks at the providers, which may be far away."""
BADGES: Final = {"local": "LOC", "docker": "DKR", "vercel": "VCL", "deno": "DNO"}
COLOURS: Final = {"failed": "red", "succeeded": "green", "running": "cyan", "answering": "cyan"}
RUN_COLUMNS: Final = ("", "State", "By", "Agent", "Age", "Took", "Asked")
SANDBOX_COLUMNS: Final = ("", "Thread", "State", "Agent", "Region", "Left", "CPU", "Memory", "Used")


_OF_RUNS: Final = frozenset({"log", "stop", "retry"})
_OF_SANDBOXES: Final = frozenset({"hand", "remove"})
"""Keys that do something with one run, and with one sandbox."""


def badge(provider: str) -> str:
    """Returns three letters for a provider."""
    return BADGES.get(provider, provider[:3].upper() or LACKING)


def span(seconds: float) -> str:
    """Returns a duration in the largest unit that fits."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"


def age(at: str | None) -> str:
    """Returns how long ago a moment was."""
    return (
        LACKING
        if not at
        else span((datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds())
    )


def left(ends_at: str | None) -> str:
    """Returns how long a sandbox may still live."""
    if not ends_at:
        return LACKING
    return span((datetime.fromisoformat(ends_at) - datetime.now(UTC)).total_seconds())


def percent(value: float | None) -> str:
    """Returns it without a fraction; empty where there is none."""
    return "" if value is None else f"{value:.0f}%"


def count(value: float | None) -> str:
    """Returns a number of processors; empty where it is not told."""
    return "" if value is None else f"{value:g}"


def size(count: int | None) -> str:
    """Returns bytes as M or G; empty where they are not known."""
    if count is None:
        return ""
    mebibytes = count / 2**20
    return f"{mebibytes:.0f}M" if mebibytes < 1024 else f"{mebibytes / 1024:.3g}G"  # noqa: PLR2004 - MiB of a GiB


def share(used: str, limit: str) -> str:
    """Returns what is used and what may be, as far as each is told."""
    return used if used and not limit else f"{used} of {limit}".strip() if limit else LACKING


def took(run: Mapping[str, Any]) -> str:
    """Returns how long a run goes, or has gone."""
    if not run["started_at"]:
        return LACKING
    began = datetime.fromisoformat(run["started_at"])
    ended = datetime.fromisoformat(run["ended_at"]) if run["ended_at"] else datetime.now(UTC)
    return span((ended - began).total_seconds())


class Rows(DataTable[Text | str]):
    """A table that looks the same with and without the focus, and keeps what it has drawn for as long as that is the same.

    Textual's own draws all its cells anew when the focus or its height changes, which a key for a box or for the other table waits for:
    twice the processor's time. Source: textual 8.2, `DataTable.notify_style_update` and `_on_resize`, read and run 2026-11.
    """

    DEFAULT_CSS = """
    Rows {
        height: 1fr;
        &, &:focus {
            background-tint: transparent 0%;
            & > .datatable--header { background-tint: transparent 0%; }
            & > .datatable--cursor {
                background: $block-cursor-background; color: $block-cursor-foreground; text-style: $block-cursor-text-style;
            }
        }
    }
    """

    def __init__(self, name: str) -> None:
        super().__init__(id=name, cursor_type="row", zebra_stripes=True)
        self._look: Style | None = None
        self._drawn_width = 0

    def on_resize(self, event: Resize) -> None:
        if event.size.width == self._drawn_width:
            event.prevent_default()
        self._drawn_width = event.size.width

    @override
    def notify_style_update(self) -> None:
        super(DataTable, self).notify_style_update()
        if self.rich_style != self._look:  # another theme's
            self._look = self.rich_style
            super().notify_style_update()


class Board(App[None]):
    """Runs and sandboxes, live."""

    CSS = """
    Screen { layers: base above; }
    #state { height: 1; background: $panel; padding: 0 1; }
    #sandboxes, #filter, #answer { display: none; }
    #filter { border: none; height: 1; }
    ModalScreen { align: center middle; }
    .window { width: 90%; height: 80%; border: round $primary; background: $surface; padding: 0 1; }
    .window Input { border: none; height: 1; }
    """
    TITLE = "Orion"
    ENABLE_COMMAND_PALETTE = False
    """Its key, Ctrl+P, would come before the windows' own."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("tab", "turn", "Switch", priority=True),
        Binding("f", "filter", "Filter", priority=True),
        Binding("escape", "leave_filter", "Leave", show=False),
        Binding("enter", "open", "Open", show=False),
        Binding("l", "log", "Log"),
        Binding("s", "stop", "Stop"),
        Binding("t", "retry", "Retry"),
        Binding("a", "hand('attach')", "Attach"),
        Binding("h", "hand('shell')", "Shell"),
        Binding("u", "hand('resume')", "Resume"),
        Binding("x", "remove", "Remove"),
        Binding("n", "ask", "Ask", priority=True),
        Binding("c", "set_up", "Clouds"),
    ]
    """Words are typed behind `f` and `n`: with priority they are done before the next key is given to anything."""

    def __init__(self, office: Office) -> None:
        super().__init__()
        self.office = office
        self.query_of_runs = RunQuery(limit=200)
        self.filter_words = ""
        """Those that hold."""
        self.shows_runs = True
        self.rows_of_sandboxes: Mapping[str, Mapping[str, Any]] = {}
        self._made = asyncio.Event()
        """Once the screen's tables are there."""

    @override
    def compose(self) -> ComposeResult:
        yield Static("", id="state", markup=False)
        yield Rows("runs")
        yield Rows("sandboxes")
        yield Input(
            placeholder="state=failed user=U1 agent=claude provider=docker  (esc: leave)",
            id="filter",
        )
        yield Keys()

    def on_load(self) -> None:
        self.run_worker(self._look_at_all())  # which reads while the screen is made

    def on_mount(self) -> None:
        self.table("runs").add_columns(*RUN_COLUMNS)
        self.table("sandboxes").add_columns(*SANDBOX_COLUMNS)
        self._made.set()
        self.set_interval(LOOK_S, self.look)
        self.set_interval(PROVIDERS_LOOK_S, self.look_at_providers)
        self.table("runs").focus()

    def table(self, name: str) -> Rows:
        return self.query_one(f"#{name}", Rows)

    # -- what is shown --------------------------------------------------------------------------------------------------

    async def _look_at_all(self) -> None:
        """The providers come second: their libraries would hold up the first screen."""
        await self.look().wait()
        self.look_at_providers()

    @work(exclusive=True, group="runs")
    async def look(self) -> None:
        try:
            runs = await self.office.runs(self.query_of_runs)
            going, waiting = await self.office.going_and_waiting()
            nobody = "" if await self.office.living() else "  no Orion lives!"
        except Exception as exc:  # noqa: BLE001 - the next look may do better
            await self._made.wait()
            self.tell(f"the records cannot be read: {plain(exc)}")
            return
        await self._made.wait()
        fill(self.table("runs"), {run["id"]: self._run_row(run) for run in runs})
        self.tell(f"{going} going, {waiting} waiting, {len(runs)} shown{self._filtered()}{nobody}")

    def _filtered(self) -> str:
        return f"  [{plain(self.filter_words)}]" if self.filter_words else ""

    def _run_row(self, run: Mapping[str, Any]) -> Sequence[Text | str]:
        state = Text(run["code"] or run["state"], style=COLOURS.get(run["state"], ""))
        return (
            badge(run["provider"]),
            state,
            run["user"],
            run["agent"] or LACKING,
            age(run["created_at"]),
            took(run),
            plain(run["text"])[:60] or "(no text)",
        )

    @work(exclusive=True, group="sandboxes")
    async def look_at_providers(self) -> None:
        try:
            rows = await self.office.sandboxes()
        except Exception as exc:  # noqa: BLE001 - the next look may do better
            self.tell(f"sandboxes cannot be listed: {plain(exc)}")
            return
        wanted = self.query_of_runs
        self.rows_of_sandboxes = {
            str(row["id"]): row
            for row in rows
            if wanted.provider in ("", row["provider"]) and wanted.agent in ("", row["agent"])
        }
        shown = {name: self._sandbox_row(row) for name, row in self.rows_of_sandboxes.items()}
        fill(self.table("sandboxes"), shown)

    def _sandbox_row(self, row: Mapping[str, Any]) -> Sequence[Text | str]:
        return (
            badge(str(row["provider"])),
            plain(row["name"]) or "(no thread)",
            str(row["status"]),
            str(row["agent"]) or LACKING,
            str(row["region"]) or LACKING,
            left(row["ends_at"]),
            share(percent(row["cpu_percent"]), count(row["cpus"])),
            share(size(row["memory_bytes"]), size(row["memory_limit_bytes"])),
            age(row["used_at"] or row["created_at"]),
        )

    def tell(self, text: str) -> None:
        # Its place is the same, whatever it says: a new layout would draw the whole screen anew.
        self.query_one("#state", Static).update(f"Orion  {text}", layout=False)

    # -- what is done ---------------------------------------------------------------------------------------------------

    def chosen(self) -> str:
        """Returns the id in the row that is chosen; empty where there is none."""
        table = self.table("runs" if self.shows_runs else "sandboxes")
        if not table.row_count:
            return ""
        return str(table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value)

    @override
    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Whether it is for what the shown list holds: 80 columns name no more keys."""
        del parameters
        if action == "filter":
            return not isinstance(self.screen, Detail)
        if action in _OF_RUNS:
            return self.shows_runs
        return action not in _OF_SANDBOXES or not self.shows_runs

    def action_turn(self) -> None:
        self.shows_runs = not self.shows_runs
        self.table("runs").display = self.shows_runs
        self.table("sandboxes").display = not self.shows_runs
        self.screen.set_focus(self.table("runs" if self.shows_runs else "sandboxes"))
        self.refresh_bindings()

    def _leave_letters_to_boxes(self) -> None:
        """Gives a key on to what is written in, and to windows; not by `check_action`, by which the list below them would lose its keys. Raises: SkipAction."""
        if isinstance(self.screen, ModalScreen) or isinstance(self.focused, Input):
            raise SkipAction

    def action_filter(self) -> None:
        self._leave_letters_to_boxes()
        box = self.query_one("#filter", Input)
        box.display = True
        self.screen.set_focus(box)  # at once, unlike `focus()`: what is typed next is for it

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input.id != "filter":
            return
        try:
            self.query_of_runs = read_filter(event.value)
        except FilterError as exc:
            self.notify(plain(exc), severity="error", markup=False)
            return
        self.filter_words = event.value
        self.action_leave_filter()
        self.look()
        self.look_at_providers()

    def action_leave_filter(self) -> None:
        """Back to the list, by the filter that holds."""
        box = self.query_one("#filter", Input)
        box.value = self.filter_words
        box.display = bool(self.filter_words)
        self.screen.set_focus(self.table("runs" if self.shows_runs else "sandboxes"))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        del event
        self.action_open()

    def action_open(self) -> None:
        if not (chosen := self.chosen()):
            return
        if self.shows_runs:
            self.push_screen(Detail(self.office, chosen))
        elif (row := self.rows_of_sandboxes.get(chosen)) is not None:
            self.push_screen(Facts(f"sandbox {row['name'] or chosen}", sandbox_lines(row)))

    def action_log(self) -> None:
        if run_id := self.chosen():
            tell = partial(self._follow, run_id)
            self.push_screen(Lines(f"log of {run_id}", tell))

    async def _follow(self, run_id: str, write: "Print") -> None:
        await self.office.follow(run_id, write=write)

    @work(exit_on_error=False)
    async def action_stop(self) -> None:
        if run_id := self.chosen():
            self.notify(f"{run_id}: {await self.office.stop(run_id)}")

    @work(exit_on_error=False)
    async def action_retry(self) -> None:
        if run_id := self.chosen():
            self.notify(await self.office.retry(run_id))

    def action_hand(self, command: str) -> None:
        """Gives the terminal to a command that works in a sandbox."""
        if not (name := self.chosen()):
            return
        with self.suspend():
            print(f"orion sandboxes {command} {name} …", flush=True)
            subprocess.run(
                [sys.executable, "-P", "-m", "app.cli", "sandboxes", command, name], check=False
            )

    @work(exit_on_error=False)
    async def action_remove(self) -> None:
        if not (name := self.chosen()):
            return
        thread = self.rows_of_sandboxes.get(name, {}).get("name") or name
        if await self.push_screen_wait(Sure(f"Remove {plain(thread)} with its files?")):
            self.action_hand("rm")
            self.look_at_providers()

    async def action_ask(self) -> None:
        self._leave_letters_to_boxes()
        await self.push_screen(Ask(self.office))  # until it is there: what is typed next is for it

    def action_set_up(self) -> None:
        self.push_screen(SetUp(self.office))

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        tell_failure(self, event)


def fill(table: DataTable[Text | str], rows: Mapping[str, Sequence[Text | str]]) -> None:
    """Shows these rows, and keeps the cursor where it was.

    Words are made texts, as a table would read those in brackets as markup, and fail where they are none. Where the rows are
    the same ones as before, only what has changed of them is touched: to measure and draw all anew holds up keys.
    """
    rows = {
        key: [Text(cell) if isinstance(cell, str) else cell for cell in row]
        for key, row in rows.items()
    }
    if [key.value for key in table.rows] == list(rows):
        columns = list(table.columns)
        for key, row in rows.items():
            for column, shown, new in zip(columns, table.get_row(key), row, strict=True):
                if shown != new:
                    table.update_cell(key, column, new, update_width=len(new) > len(shown))
        return
    chosen = None
    if table.row_count:
        chosen = table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value
    table.clear()
    for key, row in rows.items():
        table.add_row(*row, key=key)
    if chosen is not None and chosen in rows:
        table.move_cursor(row=table.get_row_index(chosen), animate=False)

"""The screens of `orion tui`."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import DataTable, Footer, Input, Label, RichLog, Static
from textual.worker import WorkerCancelled
from typing_extensions import override

from app.cli.tui.office import LACKING, FilterError, Office, plain, read_filter
from app.store.runs import RunQuery

LOOK_S: Final = 2.0
"""Between two looks at the records."""
PROVIDERS_LOOK_S: Final = 15.0
"""Between two looks at the providers, which may be far away."""
BADGES: Final = {"local": "LOC", "docker": "DKR", "vercel": "VCL", "deno": "DNO"}
COLOURS: Final = {"failed": "red", "succeeded": "green", "running": "cyan", "answering": "cyan"}
RUN_COLUMNS: Final = ("", "State", "Asked", "By", "Agent", "Age", "Took")
SANDBOX_COLUMNS: Final = ("", "Thread", "State", "Agent", "Region", "Left", "CPU", "Memory", "Used")


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


def took(run: Mapping[str, Any]) -> str:
    """Returns how long a run goes, or has gone."""
    if not run["started_at"]:
        return LACKING
    began = datetime.fromisoformat(run["started_at"])
    ended = datetime.fromisoformat(run["ended_at"]) if run["ended_at"] else datetime.now(UTC)
    return span((ended - began).total_seconds())


class Keys(Footer):
    """The line of keys. Made anew only when they are other ones: Textual's is four times at each change of focus, and longer than all else takes."""

    def __init__(self) -> None:
        super().__init__(compact=True, show_command_palette=False)
        self._known: Sequence[tuple[str, str, bool]] = ()

    @override
    def bindings_changed(self, screen: Screen[Any]) -> None:
        if screen is not self.screen or not screen.app.app_focus:
            return
        active = screen.active_bindings.values()
        shown = [
            (one.binding.key, one.binding.description, one.enabled)
            for one in active
            if one.binding.show
        ]
        if shown != self._known:
            self._known = shown
            super().bindings_changed(screen)


class Board(App[None]):
    """Runs and sandboxes, live."""

    CSS = """
    Screen { layers: base above; }
    #state { height: 1; background: $panel; padding: 0 1; }
    DataTable { height: 1fr; }
    .hidden { display: none; }
    #filter { border: none; height: 1; }
    ModalScreen { align: center middle; }
    .window { width: 90%; height: 80%; border: round $primary; background: $surface; padding: 0 1; }
    .window Input { border: none; height: 1; }
    """
    TITLE = "Orion"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("tab", "turn", "Runs/sandboxes", priority=True),
        Binding("f", "filter", "Filter"),
        Binding("enter", "open", "Open", show=False),
        Binding("l", "log", "Log"),
        Binding("s", "stop", "Stop"),
        Binding("t", "retry", "Retry"),
        Binding("a", "hand('attach')", "Attach"),
        Binding("h", "hand('shell')", "Shell"),
        Binding("u", "hand('resume')", "Resume"),
        Binding("x", "remove", "Remove"),
        Binding("n", "ask", "Ask"),
        Binding("c", "set_up", "Clouds"),
    ]

    def __init__(self, office: Office) -> None:
        super().__init__()
        self.office = office
        self.query_of_runs = RunQuery(limit=200)
        self.shows_runs = True

    @override
    def compose(self) -> ComposeResult:
        yield Static("", id="state", markup=False)
        yield DataTable[Text | str](id="runs", cursor_type="row", zebra_stripes=True)
        yield DataTable[Text | str](id="sandboxes", cursor_type="row", classes="hidden")
        yield Input(
            placeholder="state=failed user=U1 agent=claude provider=docker",
            id="filter",
            classes="hidden",
        )
        yield Keys()

    def on_mount(self) -> None:
        self.table("runs").add_columns(*RUN_COLUMNS)
        self.table("sandboxes").add_columns(*SANDBOX_COLUMNS)
        self.run_worker(self._look_at_all())
        self.set_interval(LOOK_S, self.look)
        self.set_interval(PROVIDERS_LOOK_S, self.look_at_providers)
        self.table("runs").focus()

    def table(self, name: str) -> DataTable[Text | str]:
        return self.query_one(f"#{name}", DataTable)

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
        except (OSError, TimeoutError) as exc:
            self.tell(f"the records cannot be read: {plain(exc)}")
            return
        fill(self.table("runs"), {run["id"]: self._run_row(run) for run in runs})
        self.tell(f"{going} going, {waiting} waiting, {len(runs)} shown{self._filtered()}")

    def _filtered(self) -> str:
        said = self.query_one("#filter", Input).value
        return f"  [{plain(said)}]" if said else ""

    def _run_row(self, run: Mapping[str, Any]) -> Sequence[Text | str]:
        state = Text(run["code"] or run["state"], style=COLOURS.get(run["state"], ""))
        return (
            badge(run["provider"]),
            state,
            plain(run["text"])[:60] or "(no text)",
            run["user"],
            run["agent"] or LACKING,
            age(run["created_at"]),
            took(run),
        )

    @work(exclusive=True, group="sandboxes")
    async def look_at_providers(self) -> None:
        try:
            rows = await self.office.sandboxes()
        except OSError as exc:
            self.tell(f"sandboxes cannot be listed: {plain(exc)}")
            return
        fill(self.table("sandboxes"), {str(row["id"]): self._sandbox_row(row) for row in rows})

    def _sandbox_row(self, row: Mapping[str, Any]) -> Sequence[Text | str]:
        return (
            badge(str(row["provider"])),
            plain(row["name"]) or "(no thread)",
            str(row["status"]),
            str(row["agent"]) or LACKING,
            str(row["region"]) or LACKING,
            LACKING,
            LACKING,
            LACKING,
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

    def action_turn(self) -> None:
        self.shows_runs = not self.shows_runs
        self.table("runs").set_class(not self.shows_runs, "hidden")
        self.table("sandboxes").set_class(self.shows_runs, "hidden")
        self.table("runs" if self.shows_runs else "sandboxes").focus()

    def action_filter(self) -> None:
        box = self.query_one("#filter", Input)
        box.remove_class("hidden")
        box.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input.id != "filter":
            return
        try:
            self.query_of_runs = read_filter(event.value)
        except FilterError as exc:
            self.notify(plain(exc), severity="error", markup=False)
            return
        event.input.set_class(not event.value, "hidden")
        self.table("runs").focus()
        self.look()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        del event
        self.action_open()

    def action_open(self) -> None:
        if self.shows_runs and (run_id := self.chosen()):
            self.push_screen(Detail(self.office, run_id))

    def action_log(self) -> None:
        if self.shows_runs and (run_id := self.chosen()):
            self.push_screen(Lines(f"log of {run_id}", follow(self.office, run_id)))

    @work
    async def action_stop(self) -> None:
        if self.shows_runs and (run_id := self.chosen()):
            self.notify(await self.office.stop(run_id))

    @work
    async def action_retry(self) -> None:
        if not (self.shows_runs and (run_id := self.chosen())):
            return
        try:
            self.notify(await self.office.retry(run_id))
        except Exception as exc:  # noqa: BLE001 - whatever keeps it from being asked again is told
            self.notify(plain(exc), severity="error", markup=False)

    def action_hand(self, command: str) -> None:
        """Gives the terminal to a command that works in a sandbox."""
        if self.shows_runs or not (name := self.chosen()):
            self.notify("choose a sandbox first (tab)")
            return
        with self.suspend():
            subprocess.run(
                [sys.executable, "-P", "-m", "app.cli", "sandboxes", command, name], check=False
            )

    @work
    async def action_remove(self) -> None:
        if self.shows_runs or not (name := self.chosen()):
            self.notify("choose a sandbox first (tab)")
            return
        if await self.push_screen_wait(Sure(f"Remove {plain(name)} with its files?")):
            self.action_hand("rm")
            self.look_at_providers()

    def action_ask(self) -> None:
        self.push_screen(Ask(self.office))

    def action_set_up(self) -> None:
        clouds = [
            place.provider for place in self.office.places() if place.provider in ("vercel", "deno")
        ]
        self.push_screen(Lines("clouds", set_up_all(self.office, clouds)))


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


async def follow(office: Office, run_id: str) -> AsyncIterator[str]:
    """Yields a run's log as it grows; over when the run is."""
    shown = 0
    while True:
        run = await office.run(run_id)
        if run is None:
            yield "(the run is gone)"
            return
        lines = run["log"].split("\n")
        for line in lines[shown:]:
            yield line
        shown = len(lines)
        if run["ended_at"]:
            yield f"({run['code'] or run['state']})"
            return
        await asyncio.sleep(LOOK_S)


async def set_up_all(office: Office, clouds: Sequence[str]) -> AsyncIterator[str]:
    """Yields the states of setting up each cloud, as `orion setup` says them."""
    for cloud in clouds:
        yield f"{cloud}: checking"
        async for line in office.set_up(cloud):
            yield f"{cloud}: {line}"


class Detail(Screen[None]):
    """One run whole."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "app.pop_screen", "Back")]

    def __init__(self, office: Office, run_id: str) -> None:
        super().__init__()
        self._office = office
        self._run_id = run_id

    @override
    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static("", id="detail", markup=False)
        yield Keys()

    def on_mount(self) -> None:
        self.look()
        self.set_interval(LOOK_S, self.look)

    @work(exclusive=True)
    async def look(self) -> None:
        run = await self._office.run(self._run_id)
        self.query_one("#detail", Static).update("\n".join(detail_lines(run, self._run_id)))


def detail_lines(run: Mapping[str, Any] | None, run_id: str) -> Sequence[str]:
    """Returns what the screen of one run says."""
    if run is None:
        return [f"{plain(run_id)} is gone: its record has been removed."]
    row = run["row"]
    facts = {
        "run": row["id"],
        "state": row["state"],
        "code": row["code"],
        "detail": row["detail"],
        "thread": row["thread"],
        "agent": f"{row['agent']} {row['model']}",
        "sandbox": f"{row['provider'] or LACKING} {row['sandbox_id'] or ''}",
        "took": row["duration_s"],
        "cost": row["cost_usd"],
        "tokens": f"{row['input_tokens']} in, {row['output_tokens']} out",
        "changes": row["changes"],
        "files out": ", ".join(one["name"] for one in row["files_out"]),
        "trace": row["trace_id"],
        "log": f"orion runs show {row['id']} --log",
    }
    lines = [
        f"{name:10} {plain(value)}" for name, value in facts.items() if value not in (None, "")
    ]
    lines += ["", plain(run["text"])[:500], "", "Steps"]
    for step in row["trace"]:
        name = f"  {step['name']}" if step["parent"] else step["name"]
        lines.append(f"{step['duration_s']:9.3f} s  {plain(name)}  {plain(step['error'])}".rstrip())
    lines += ["", "Answer", *(plain(line) for line in run["answer"].split("\n"))]
    return lines


class Lines(ModalScreen[None]):
    """Lines as they come."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss", "Back")]

    def __init__(self, title: str, lines: AsyncIterator[str]) -> None:
        super().__init__()
        self._title = title
        self._lines = lines

    @override
    def compose(self) -> ComposeResult:
        yield RichLog(classes="window", wrap=True)

    def on_mount(self) -> None:
        log = self.query_one(RichLog)
        log.border_title = self._title
        log.focus()
        self.read()

    @work(exclusive=True)
    async def read(self) -> None:
        log = self.query_one(RichLog)
        try:
            async for line in self._lines:
                log.write(Text(plain(line)))
        except WorkerCancelled:
            return


class Sure(ModalScreen[bool]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "Yes"),
        Binding("n,escape", "dismiss(False)", "No"),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    @override
    def compose(self) -> ComposeResult:
        yield Label(f"{self._text}  y / n", classes="window", markup=False)


class Ask(ModalScreen[None]):
    """A question without Slack."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Back"),
        Binding("ctrl+p", "other", "Other sandbox", priority=True),
    ]

    def __init__(self, office: Office) -> None:
        super().__init__()
        self._office = office
        self._places = office.places()
        self._at = 0

    @override
    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="window"):
            yield Static("", id="place", markup=False)
            yield Input(
                placeholder="a question; /docker, /local, /cloud or /provider NAME choose where",
                id="question",
            )
            yield RichLog(wrap=True)

    def on_mount(self) -> None:
        self._show_place()
        self.query_one(Input).focus()

    def action_other(self) -> None:
        self._at = (self._at + 1) % len(self._places)
        self._show_place()

    def _show_place(self) -> None:
        place = self._places[self._at]
        warnings = [one for one in (place.missing, self._office.missing_model()) if one]
        warned = f"  ! {'; '.join(warnings)}" if warnings else ""
        self.query_one("#place", Static).update(
            f"in {place.provider} (ctrl+p: another){plain(warned)}"
        )

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        text, event.input.value = event.value.strip(), ""
        if text.startswith("/"):
            self._choose(text)
        elif text:
            self.run_question(text)

    def _choose(self, text: str) -> None:
        word, _, rest = text.removeprefix("/").partition(" ")
        wanted = rest.strip() if word == "provider" else {"cloud": "vercel"}.get(word, word)
        names = [place.provider for place in self._places]
        if wanted not in names:
            self.notify(f"there are: {', '.join(names)}", severity="error")
            return
        self._at = names.index(wanted)
        self._show_place()

    @work(exclusive=True)
    async def run_question(self, text: str) -> None:
        log = self.query_one(RichLog)
        log.write(Text(f"> {plain(text)}", style="bold"))
        async for line in self._office.ask(text, provider=self._places[self._at].provider):
            log.write(Text(plain(line)))

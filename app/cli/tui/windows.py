"""What the terminal shows above its lists: a run whole, lines as they come, a question, the set-up of a cloud."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, Label, RichLog, Static
from textual.worker import Worker, WorkerState
from typing_extensions import override

from app.cli.tui.office import LACKING, Office, plain

if TYPE_CHECKING:
    from app.cli.commands.setup import Question
    from app.cli.commands.terminal import Print

LOOK_S: Final = 2.0
"""Between two looks at the records."""


def tell_failure(app: App[Any], event: Worker.StateChanged) -> None:
    """Says why something could not be done; what is on the screen stays."""
    if event.state is WorkerState.ERROR:
        app.notify(plain(event.worker.error), severity="error", markup=False)


class Keys(Static):
    """The line of keys, as one text. Textual's own footer makes a widget of each, anew at each change of focus, and longer than all else takes."""

    DEFAULT_CSS = """
    Keys { dock: bottom; height: 1; background: $footer-background; color: $footer-foreground; text-wrap: nowrap; }
    """

    _line = ""

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._show)

    def on_unmount(self) -> None:
        self.screen.bindings_updated_signal.unsubscribe(self)

    def _show(self, screen: Screen[Any]) -> None:
        if screen is not self.screen or not screen.app.app_focus:
            return
        shown: dict[str, Binding] = {}  # the first key of each action
        for one in screen.active_bindings.values():
            if one.binding.show:
                shown.setdefault(one.binding.action, one.binding)
        words = (
            f"[@click=app.simulate_key('{one.key}')][bold $footer-key-foreground]{screen.app.get_key_display(one)}[/] {one.description}[/]"
            for one in shown.values()
        )
        line = " ".join(words)
        if line != self._line:  # told thrice for each change of focus
            self._line = line
            self.update(line, layout=False)


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

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        tell_failure(self.app, event)

    @work(exclusive=True, exit_on_error=False)
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
        "agent": f"{row['agent']} {row['model']}".strip(),
        "sandbox": f"{row['provider'] or LACKING} {row['sandbox_id'] or ''}",
        "took": "" if row["duration_s"] is None else f"{row['duration_s']:.1f} s",
        "cost": "" if row["cost_usd"] is None else f"${row['cost_usd']:.4f}",
        "tokens": f"{row['input_tokens']} in, {row['output_tokens']} out",
        "changes": row["changes"],
        "files out": ", ".join(one["name"] for one in row["files_out"]),
        "trace": row["trace_id"],
        "log": f"orion runs show {row['id']} --log",
        **_session_facts(run["session"]),
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


def _session_facts(session: Mapping[str, Any] | None) -> Mapping[str, str]:
    """Returns what is saved of a run's thread, and how to reach it."""
    if session is None:
        return {"saved": "nothing"}
    saved = ", ".join(f"{name} at {provider}" for provider, name in session["snapshots"].items())
    return {
        "saved": saved or "nothing yet",
        "reach": f"orion sandboxes shell {session['name']} ({session['status']}, {session['provider']})",
    }


def sandbox_lines(row: Mapping[str, Any]) -> Sequence[str]:
    """Returns what the window of one sandbox says: all that is known of it, and how to reach it."""
    facts = {**row, "reach": f"orion sandboxes shell {row['name']}" if row["name"] else ""}
    return [
        f"{name.replace('_', ' '):18} {plain(value)}"
        for name, value in facts.items()
        if value not in (None, "", [])
    ]


class Window(ModalScreen[None]):
    """A window above the board."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Back")]

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        tell_failure(self.app, event)


class Lines(Window):
    """Lines as they come."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "dismiss", "Back")]

    def __init__(self, title: str, tell: "Callable[[Print], Awaitable[None]]") -> None:
        """`tell` is given what shows a line; it is cancelled when the window is closed."""
        super().__init__()
        self._title = title
        self._tell = tell

    @override
    def compose(self) -> ComposeResult:
        yield RichLog(classes="window", wrap=True, min_width=0)

    def on_mount(self) -> None:
        log = self.query_one(RichLog)
        log.border_title = self._title
        log.focus()
        self.read()

    @work(exclusive=True, exit_on_error=False)
    async def read(self) -> None:
        log = self.query_one(RichLog)

        def write(line: str) -> None:
            log.write(Text(plain(line)))

        await self._tell(write)


class Facts(Window):
    """Lines that do not change."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "dismiss", "Back")]

    def __init__(self, title: str, lines: Sequence[str]) -> None:
        super().__init__()
        self._title = title
        self._lines = lines

    @override
    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="window") as window:
            window.border_title = self._title
            yield Static("\n".join(self._lines), id="facts", markup=False)


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


class Ask(Window):
    """A question without Slack."""

    BINDINGS: ClassVar[list[BindingType]] = [
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
            yield RichLog(wrap=True, min_width=0)

    def on_mount(self) -> None:
        self._show_place()
        self.set_focus(self.query_one(Input))

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
        if word == "provider":
            word, _, rest = rest.strip().partition(" ")
        wanted = {"cloud": "vercel"}.get(word, word)
        names = [place.provider for place in self._places]
        if wanted not in names:
            self.notify(f"there are: {', '.join(names)}", severity="error")
            return
        self._at = names.index(wanted)
        self._show_place()
        if rest.strip():
            self.run_question(rest.strip())

    @work(exclusive=True, exit_on_error=False)
    async def run_question(self, text: str) -> None:
        log = self.query_one(RichLog)
        log.write(Text(f"> {plain(text)}", style="bold"))
        async for line in self._office.ask(text, provider=self._places[self._at].provider):
            log.write(Text(plain(line)))


class SetUp(Window):
    """A cloud is set up: asked for what is missing, tried, kept, its environment built."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+p", "other", "Other cloud", priority=True),
        Binding("enter", "start", "Set up"),
    ]

    def __init__(self, office: Office) -> None:
        super().__init__()
        self._office = office
        self._clouds = office.clouds()
        self._at = 0
        self._answer: asyncio.Future[str] | None = None
        """Of the question that is open."""

    @override
    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="window"):
            yield Static("", id="place", markup=False)
            yield Input(id="answer")
            yield RichLog(wrap=True, min_width=0)

    def on_mount(self) -> None:
        self._show_cloud()
        self.query_one(RichLog).focus()

    def action_other(self) -> None:
        self._at = (self._at + 1) % len(self._clouds)
        self._show_cloud()

    def _show_cloud(self) -> None:
        cloud = self._clouds[self._at]
        self.query_one("#place", Static).update(
            f"set up {cloud}: enter  (ctrl+p: another; esc: leave)"
        )

    def action_start(self) -> None:
        self._set_up(self._clouds[self._at])

    @work(exclusive=True, exit_on_error=False)
    async def _set_up(self, cloud: str) -> None:
        log = self.query_one(RichLog)

        def say(line: str) -> None:
            log.write(Text(plain(f"{cloud}: {line}")))

        await self._office.set_up(cloud, ask=self._ask, say=say)

    async def _ask(self, question: "Question") -> str:
        """Waits for the person, as long as the window is open."""
        box = self.query_one("#answer", Input)
        box.placeholder, box.password, box.value = (
            question.text,
            question.is_secret,
            question.default,
        )
        box.display = True
        box.focus()
        self._answer = asyncio.get_running_loop().create_future()
        try:
            return await self._answer
        finally:
            self._answer = None
            box.value = ""
            box.display = False
            self.query_one(RichLog).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if self._answer is not None and not self._answer.done() and event.value.strip():
            self._answer.set_result(event.value.strip())

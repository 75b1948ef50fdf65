"""Messages as Slack tells of them: what people write, share and forward, and what apps post.

Written after Slack's documentation (Block Kit, secondary attachments, rich text, file objects, read 2026-11), shortened to the
fields that say something. `arrives`: each of these must be in what the agent is told; `left_out`: must be told to the asker.
"""

import html
import sys
from dataclasses import dataclass, field
from typing import Any, Final

Node = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    text: str = "<@UBOT> what is this?"
    fields: Node = field(default_factory=dict)
    arrives: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    """Must not be there, or not twice."""


def rich(*elements: Node) -> Node:
    return {"type": "rich_text", "block_id": "b", "elements": list(elements)}


def line(*elements: Node) -> Node:
    return {"type": "rich_text_section", "elements": list(elements)}


def said(text: str, **style: bool) -> Node:
    return {"type": "text", "text": text, **({"style": style} if style else {})}


def mrkdwn(text: str) -> Node:
    return {"type": "mrkdwn", "text": text}


def plain(text: str) -> Node:
    return {"type": "plain_text", "text": text}


def asking(*elements: Node) -> list[Node]:
    """Returns the blocks of a mention of the bot, as Slack's own composer writes them."""
    return [rich(line({"type": "user", "user_id": "UBOT"}, said(" what is this?")), *elements)]


def file(name: str, **fields: Any) -> Node:
    return {
        "id": f"F{abs(hash(name)) % 10**8:08d}",
        "name": name,
        "mimetype": "text/plain",
        "mode": "hosted",
        "size": 12,
        "url_private": f"https://files.slack.com/files-pri/T1-F1/{name}",
        "url_private_download": f"https://files.slack.com/files-pri/T1-F1/download/{name}",
        **fields,
    }


def forwarded(**fields: Any) -> Node:
    return {
        "is_share": True,
        "is_msg_unfurl": True,
        "author_id": "USAM00001",
        "author_name": "Sam Colleague",
        "author_subname": "Sam",
        "channel_id": "C0RANDOM1",
        "channel_team": "T1",
        "ts": "1799990000.000100",
        "from_url": "https://acme.slack.com/archives/C0RANDOM1/p1799990000000100",
        "fallback": "[January 15th, 2027 4:26 PM] sam: the deploy is red",
        "text": "the deploy is red &amp; nobody knows why",
        "footer": "Posted in #random",
        "mrkdwn_in": ["text"],
        **fields,
    }


def blocks_of_message(*blocks: Node) -> list[Node]:
    message = {"blocks": list(blocks)}
    return [{"team": "T1", "channel": "C0RANDOM1", "ts": "1799990000.000100", "message": message}]


SOURCE: Final = "https://acme.slack.com/archives/C0RANDOM1/p1799990000000100"
_FORWARDED_BY: Final = ("Forwarded message by Sam Colleague / Sam in #random 2027-01-15", SOURCE)

PEOPLE: Final[dict[str, Shape]] = {
    "plain words": Shape(fields={"blocks": asking()}, arrives=("what is this?",), absent=("[came",)),
    "escapes": Shape(text="<@UBOT> a &lt;b&gt; &amp;&amp; c", arrives=("a <b> && c",)),
    "bold, code and a link": Shape(
        text="<@UBOT> *bold* `code` <https://acme.org/a?b=1&amp;c=2|the page>",
        fields={"blocks": [rich(line(
            {"type": "user", "user_id": "UBOT"}, said(" "), said("bold", bold=True), said(" "), said("code", code=True),
            said(" "), {"type": "link", "url": "https://acme.org/a?b=1&c=2", "text": "the page"}))]},
        arrives=("*bold* `code` the page (https://acme.org/a?b=1&c=2)",), absent=("[came",)),
    "a list and a fence": Shape(
        text="<@UBOT> what is this?\n• one\n    ◦ two\n```x = 1```",
        fields={"blocks": asking(
            {"type": "rich_text_list", "style": "bullet", "indent": 0, "elements": [line(said("one"))]},
            {"type": "rich_text_list", "style": "bullet", "indent": 1, "elements": [line(said("two"))]},
            {"type": "rich_text_preformatted", "elements": [said("x = 1")]})},
        arrives=("• one", "◦ two", "```x = 1```"), absent=("[came",)),
    "rich text alone": Shape(
        text="<@UBOT>",
        fields={"blocks": [rich(
            line({"type": "user", "user_id": "UBOT"}, said(" read "), said("this", italic=True, bold=True)),
            {"type": "rich_text_list", "style": "ordered", "offset": 2, "elements": [line(said("three")), line(said("four"))]},
            {"type": "rich_text_quote", "elements": [said("first\nsecond")]},
            {"type": "rich_text_preformatted", "language": "python", "elements": [said("print(1)")]})]},
        arrives=("read **_this_**", "3. three\n4. four", "> first\n> second", "```python\nprint(1)\n```")),
    "words in capitals": Shape(
        text="<@UBOT>",
        fields={"blocks": [rich(line(said("stop using STAGING servers")))]},
        arrives=("stop using STAGING servers",),
    ),
    "emoji, dates, colours": Shape(
        text="<@UBOT>",
        fields={"blocks": [rich(line(
            {"type": "emoji", "name": "tada", "unicode": "1f389"}, said(" on "),
            {"type": "date", "timestamp": 1_800_000_000, "format": "{date}", "fallback": "15 January 2027"}, said(" in "),
            {"type": "color", "value": "#F405B3"}, said(" for "), {"type": "broadcast", "range": "here"}, said(" and "),
            {"type": "usergroup", "usergroup_id": "S0GROUP01"}))]},
        arrives=(":tada: on 15 January 2027 in #F405B3 for @here and @S0GROUP01",)),
    "people and channels": Shape(
        text="<@UBOT> ask <@USAM00001> in <#C0RANDOM1> or <#C0GENERAL|general>",
        arrives=("ask @Sam in #random or #general",)),
    "people and channels between words of a script without spaces": Shape(
        text="<@UBOT> 请<@USAM00001>看看<#C0RANDOM1>吧",
        fields={"blocks": [rich(line(
            {"type": "user", "user_id": "UBOT"}, said(" 请"), {"type": "user", "user_id": "USAM00001"}, said("看看"),
            {"type": "channel", "channel_id": "C0RANDOM1"}, said("吧")))]},
        arrives=("请@Sam看看#random吧",), absent=("[came",)),
    "blocks that differ from the text in their signs": Shape(
        text="<@UBOT> result 5 x",
        fields={"blocks": [
            {"type": "section", "text": {"type": "mrkdwn", "text": "result -5 :x:"}},
            {"type": "section", "text": {"type": "mrkdwn", "text": "$5 x"}},
            {"type": "section", "text": {"type": "mrkdwn", "text": "result *5*"}}]},
        arrives=("result -5 :x:", "$5 x"), absent=("result *5*",)),
    "a call and a file of another service": Shape(
        fields={"blocks": [*asking(),
            {"type": "call", "call_id": "R1", "call": {"v1": {"name": "War room", "join_url": "https://meet.acme.org/1"}}},
            {"type": "file", "external_id": "drive-77", "source": "remote"}]},
        arrives=("[call War room (https://meet.acme.org/1)]", "[file drive-77, which another service keeps]")),
    "numbers where texts stand": Shape(
        fields={"blocks": asking(), "attachments": [{"title": "CPU", "fields": [{"title": "Value", "value": 42}]}]},
        arrives=("Value: 42",)),
    "a pasted table": Shape(
        fields={"blocks": asking(), "attachments": [{"id": 1, "fallback": "[no preview available]", "blocks": [{
            "type": "table", "rows": [
                [{"type": "raw_text", "text": "host"}, {"type": "raw_text", "text": "load | min"}],
                [{"type": "rich_text", "elements": [line(said("web-1", bold=True))]}, {"type": "raw_number", "value": 0.75}]]}]}]},
        arrives=("| host | load \\| min |", "| --- | --- |", "| **web-1** | 0.75 |")),
    "a table block": Shape(
        fields={"blocks": [*asking(), {"type": "table", "rows": [[{"type": "raw_text", "text": "only"}], [{"type": "raw_text", "text": "cell"}]]}]},
        arrives=("| only |\n| --- |\n| cell |",)),
    "a message broadcast from a thread": Shape(
        fields={"subtype": "thread_broadcast", "root": {"text": "root"}}, arrives=("what is this?",)),
    "slash me": Shape(text="<@UBOT> is puzzled", fields={"subtype": "me_message"}, arrives=("is puzzled",)),
    "null characters": Shape(text="<@UBOT> a\x00b", fields={"attachments": [{"text": "c\x00d"}]}, arrives=("ab", "> cd")),
    "right to left": Shape(text="<@UBOT> مرحبا بالعالم", arrives=("مرحبا بالعالم",)),
    "a long message": Shape(text="<@UBOT> " + "word " * 7_000, arrives=(("word " * 7_000).strip(),)),
}  # fmt: skip

SHARED: Final[dict[str, Shape]] = {
    "a forwarded message": Shape(
        fields={"blocks": asking(), "attachments": [forwarded()]},
        arrives=(*_FORWARDED_BY, "> the deploy is red & nobody knows why")),
    "a forwarded message without a word": Shape(
        text="<@UBOT>", fields={"attachments": [forwarded()]}, arrives=_FORWARDED_BY),
    "a forwarded message in blocks": Shape(
        fields={"attachments": [forwarded(text="", message_blocks=blocks_of_message(
            rich(line(said("the deploy is red")), {"type": "rich_text_list", "style": "bullet", "elements": [line(said("since noon"))]})))]},
        arrives=(*_FORWARDED_BY, "> the deploy is red\n> - since noon")),
    "a forwarded card of an app": Shape(
        fields={"attachments": [forwarded(author_name="Pager", author_subname="", text="", message_blocks=blocks_of_message(
            {"type": "header", "text": plain("Disk full")}, {"type": "section", "fields": [mrkdwn("*Host*\nweb-1"), mrkdwn("*Use*\n91 %")]}))]},
        arrives=("Forwarded message by Pager", "> ### Disk full", "> *Host*\n> web-1", "> *Use*\n> 91 %")),
    "a forwarded message with files": Shape(
        fields={"attachments": [forwarded(files=[file("trace.log"), file("heap.bin")])]},
        arrives=("[file trace.log]", "the deploy is red"), files=("trace.log", "heap.bin")),
    "a forward of a forward": Shape(
        fields={"attachments": [forwarded(text="look", attachments=[forwarded(author_name="Robin", author_subname="", text="the first words", files=[file("deep.txt")])])]},
        arrives=("> look", "Forwarded message by Robin", "> > the first words"), files=("deep.txt",)),
    "a forwarded reply": Shape(
        fields={"attachments": [forwarded(is_share=False, is_msg_unfurl=False, is_reply_unfurl=True, is_thread_root_unfurl=False)]},
        arrives=_FORWARDED_BY),
    "two forwarded messages": Shape(
        fields={"attachments": [forwarded(text="one"), forwarded(text="two", ts="1799990001.000100")]}, arrives=("> one", "> two")),
    "a forwarded message that Slack does not show": Shape(
        fields={"attachments": [forwarded(text="", fallback="[no preview available]")]},
        arrives=(*_FORWARDED_BY, "does not show it here"), left_out=("a forwarded message", SOURCE)),
    "a link to a message": Shape(
        text=f"<@UBOT> see <{SOURCE}>", fields={"attachments": [forwarded(is_share=False)]}, arrives=(_FORWARDED_BY[0], "see https://acme")),
    "a preview of a link": Shape(
        text="<@UBOT> see <https://acme.org/post>",
        fields={"attachments": [{"from_url": "https://acme.org/post", "service_name": "Acme", "title": "A post", "title_link": "https://acme.org/post",
                                 "text": "How we &amp; they did it", "fallback": "Acme: A post", "thumb_url": "https://acme.org/a.png"}]},
        arrives=("> Acme", "> A post (https://acme.org/post)", "> How we & they did it", "[image https://acme.org/a.png]")),
    "a preview by an app": Shape(
        fields={"attachments": [{"app_unfurl_url": "https://t.acme.org/1", "is_app_unfurl": True, "blocks": [
            {"type": "section", "text": mrkdwn("*T-1* broken build"), "accessory": {"type": "button", "text": plain("Open"), "url": "https://t.acme.org/1", "action_id": "a"}}]}]},
        arrives=("> *T-1* broken build", "[button Open (https://t.acme.org/1)]")),
    "an attachment with nothing but a fallback": Shape(
        fields={"attachments": [{"fallback": "the only words"}]}, arrives=("> the only words",)),
    "more than can be taken": Shape(
        fields={"attachments": [forwarded(text="x" * 39_000), forwarded(text="y" * 3_000)]},
        arrives=("x" * 39_000,), left_out=("characters of what came with the message",)),
    "what is none": Shape(fields={"attachments": [7, {}, {"fields": [7], "actions": {}}], "blocks": [None, {}]}, arrives=("what is this?",), absent=("[came",)),
}  # fmt: skip

APPS: Final[dict[str, Shape]] = {
    "an alert card": Shape(
        fields={"attachments": [{"color": "#a30200", "pretext": "Alert fired", "author_name": "monitoring", "title": "Disk full on web-1",
                                 "title_link": "https://m.acme.org/i/7", "text": "Use is *91 %*", "footer": "prometheus", "ts": 1_799_990_000,
                                 "fields": [{"title": "host", "value": "web-1", "short": True}, {"title": "runbook", "value": "<https://m.acme.org/rb|read me>"}],
                                 "actions": [{"type": "button", "text": "Silence", "url": "https://m.acme.org/s/7"}],
                                 "image_url": "https://m.acme.org/g.png"}]},
        arrives=("Alert fired", "> monitoring", "> Disk full on web-1 (https://m.acme.org/i/7)", "> Use is *91 %*", "> host: web-1",
                 "> runbook: read me (https://m.acme.org/rb)", "[button Silence (https://m.acme.org/s/7)]", "> prometheus, 2027-01-15", "[image https://m.acme.org/g.png]")),
    "a card in blocks": Shape(
        fields={"blocks": [
            {"type": "header", "text": plain("Build 812 failed")}, {"type": "divider"},
            {"type": "section", "text": mrkdwn("on <https://ci.acme.org/812|main>")},
            {"type": "context", "elements": [{"type": "image", "image_url": "https://ci.acme.org/i.png", "alt_text": "red"}, mrkdwn("by *sam*")]},
            {"type": "actions", "elements": [{"type": "button", "text": plain("Retry"), "action_id": "r", "value": "812"}]}]},
        arrives=("### Build 812 failed", "on main (https://ci.acme.org/812)", "[image red (https://ci.acme.org/i.png)] by *sam*", "[button Retry]")),
    "pictures": Shape(
        fields={"blocks": [{"type": "image", "title": plain("Load"), "alt_text": "a graph", "image_url": "https://m.acme.org/l.png"},
                           {"type": "image", "alt_text": "another", "slack_file": {"url": "https://files.slack.com/files-pri/T1-F2/x.png"}}]},
        arrives=("[image Load: a graph (https://m.acme.org/l.png)]", "[image another (https://files.slack.com")),
    "a markdown block": Shape(fields={"blocks": [{"type": "markdown", "text": "# Report\n\n| a |\n|---|\n| 1 |"}]}, arrives=("# Report\n\n| a |\n|---|\n| 1 |",)),
    "a video": Shape(
        fields={"blocks": [{"type": "video", "title": plain("The demo"), "alt_text": "demo", "description": plain("of the deploy"),
                            "title_url": "https://v.acme.org/1", "video_url": "https://v.acme.org/1/embed", "thumbnail_url": "https://v.acme.org/t.png"}]},
        arrives=("The demo", "of the deploy", "https://v.acme.org/1/embed")),
    "a card and a carousel": Shape(
        fields={"blocks": [{"type": "carousel", "elements": [
            {"type": "card", "title": mrkdwn("First"), "subtitle": mrkdwn("of two"), "body": mrkdwn("with words"), "actions": [{"type": "button", "text": plain("Go")}]},
            {"type": "card", "title": mrkdwn("Second")}]}]},
        arrives=("First", "of two", "with words", "Go", "Second")),
    "a plan of tasks": Shape(
        fields={"blocks": [{"type": "plan", "title": "Fix it", "tasks": [
            {"type": "task_card", "task_id": "1", "title": "Read the log", "status": "complete", "details": rich(line(said("10 lines")))}]}]},
        arrives=("Fix it", "Read the log", "10 lines")),
    "a container": Shape(
        fields={"blocks": [{"type": "container", "title": plain("Details"), "child_blocks": [{"type": "section", "text": mrkdwn("inside")}]}]},
        arrives=("Details", "inside")),
    "a data table": Shape(
        fields={"blocks": [{"type": "data_table", "caption": "Costs", "rows": [[{"type": "raw_text", "text": "day"}], [{"type": "raw_text", "text": "Monday"}]]}]},
        arrives=("Costs", "| day |", "| Monday |")),
    "a kind of next year": Shape(
        fields={"blocks": [{"type": "hologram", "headline": {"text": "still read"}, "parts": [{"label": "a", "value": "b"}]}]},
        arrives=("still read", "a\nb")),
}  # fmt: skip

FILES: Final[dict[str, Shape]] = {
    "a file": Shape(fields={"subtype": "file_share", "files": [file("report.csv")]}, files=("report.csv",)),
    "a file without a word": Shape(text="<@UBOT>", fields={"subtype": "file_share", "files": [file("report.csv")]}, files=("report.csv",)),
    "ten pictures": Shape(
        fields={"subtype": "file_share", "files": [file(f"{n}.png", mimetype="image/png") for n in range(10)]}, files=tuple(f"{n}.png" for n in range(10))),
    "two files of one name": Shape(
        fields={"subtype": "file_share", "files": [file("a.txt", id="F1"), file("a.txt", id="F2")]}, files=("a.txt", "a.txt")),
    "a file of another service": Shape(
        fields={"subtype": "file_share", "files": [file("Plan", mode="external", is_external=True, external_type="gdrive")]}, files=("Plan",)),
    "a file to be asked for": Shape(
        fields={"subtype": "file_share", "files": [{"id": "F0CHECK01", "mode": "file_access", "file_access": "check_file_info"}]}, files=("F0CHECK01",)),
    "a snippet": Shape(fields={"subtype": "file_share", "files": [file("-.py", mode="snippet", preview="print(1)", title="a.py")]}, files=("-.py",)),
    "a file and a forwarded message": Shape(
        fields={"subtype": "file_share", "files": [file("mine.txt")], "attachments": [forwarded(files=[file("theirs.txt")])]},
        arrives=_FORWARDED_BY, files=("mine.txt", "theirs.txt")),
    "more files than can be taken": Shape(
        fields={"subtype": "file_share", "files": [file(f"{n}.txt") for n in range(60)]}, files=tuple(f"{n}.txt" for n in range(50)), left_out=("55.txt",)),
}  # fmt: skip

SHAPES: Final = {**PEOPLE, **SHARED, **APPS, **FILES}

_KINDS: Final = {
    "What people write": PEOPLE,
    "What people share and forward": SHARED,
    "What apps post": APPS,
    "Files": FILES,
}
_HEAD: Final = """\
# What of a message reaches the agent

Rendered by `make messages` from the shapes in `tests/unit/slack/shapes.py`; a test keeps them equal. Each is told to Orion by both
events of a mention in both orders, either of which may lack what the other one has, by HTTP and by socket
(`tests/unit/slack/test_shapes.py`): every word and every file arrives, or is named below the answer.

Quoted are words by which the test knows that all of it is there.
"""
_MAX_QUOTED: Final = 120
_MAX_LISTED: Final = 12


def render() -> str:
    """The document."""
    parts = [_HEAD]
    for kind, shapes in _KINDS.items():
        parts.append(
            f"\n## {kind}\n\n| sent | the agent is told | named as left out |\n|---|---|---|\n"
        )
        parts += [
            f"| {name} | {_quoted((*shape.arrives, *shape.files))} | {_quoted(shape.left_out)} |\n"
            for name, shape in shapes.items()
        ]
    return "".join(parts)


def _quoted(words: tuple[str, ...]) -> str:
    shown = [
        one if len(one) <= _MAX_QUOTED else f"{one[:20]}… ({len(one):,} characters)"
        for one in words[:_MAX_LISTED]
    ]
    if len(words) > _MAX_LISTED:
        shown.append(f"… ({len(words)} in all)")
    return ", ".join(f"<code>{_escape(one)}</code>" for one in shown)


def _escape(text: str) -> str:
    """Returns it as it stands in a cell of a table."""
    return (
        html.escape(text, quote=False)
        .replace("|", "&#124;")
        .replace("\n", " ⏎ ")
        .replace("`", "&#96;")
    )


if __name__ == "__main__":
    sys.stdout.write(render())

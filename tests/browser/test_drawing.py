"""What the page makes of a message's text, in a real browser."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import expect

from app.playground.slack.types import GENERAL
from tests.browser.building import Scene, button, plain

pytestmark = pytest.mark.browser

HOSTILE = """<script>window.pwned = 1</script>
<img src=x onerror="window.pwned = 2"> <svg onload="window.pwned = 3">
[click](javascript:window.pwned=4) [data](data:text/html,<script>window.pwned=5</script>) <javascript:window.pwned=6>
**<b onmouseover="window.pwned=7">bold</b>** `<i>code</i>` | <u>x</u> |
[ok](https://example.com/"onmouseover="window.pwned=8)

```html"><script>window.pwned = 9</script>
</code></pre><script>window.pwned = 10</script>
```
"""


async def test_hostile_text_stays_text(scene: Scene) -> None:
    """Markup, handlers and script addresses in any kind of text run nothing and become no element."""
    blocks: list[dict[str, Any]] = [
        {"type": "markdown", "text": HOSTILE},
        {
            "type": "section",
            "text": {"type": "mrkdwn", "text": HOSTILE[:2900] + "<javascript:alert(1)|x>"},
        },
        {"type": "header", "text": plain("<script>window.pwned=11</script>")},
        {
            "type": "context",
            "elements": [{"type": "mrkdwn", "text": '<https://a.example/"onclick=|<b>x>'}],
        },
        {"type": "actions", "elements": [button("<img src=x onerror=window.pwned=12>", "x")]},
    ]
    await scene.web.chat_postMessage(channel=GENERAL, text="fallback", blocks=blocks)
    await scene.web.chat_postMessage(channel=GENERAL, text=HOSTILE)
    await scene.client.say(HOSTILE)
    items = scene.page.locator("#messages .message")
    await expect(items).to_have_count(3)
    await items.first.hover()
    assert await scene.page.evaluate("window.pwned") is None
    assert (
        await items.locator(
            "script, img, i, u, b, [onerror], [onclick], [onload], [onmouseover]"
        ).count()
        == 0
    )
    hrefs = await items.locator("a").evaluate_all("nodes => nodes.map(node => node.protocol)")
    assert set(hrefs) <= {"https:", "http:", "mailto:"}
    await expect(items.first).to_contain_text("<script>window.pwned = 1</script>")


async def test_markdown_is_drawn(scene: Scene) -> None:
    """Headings, lists, tables, quotes, fences and inline marks of a markdown block become their elements."""
    text = (
        "# Title\n\npara *it* **bold** ~~gone~~ `a < b` [link](https://example.com/x_(y))\n\n- one\n  - two\n- three\n\n"
        "5. five\n6. six\n\n> quoted\n\n| A | B |\n|---|--:|\n| 1 | `x` |\n\n```py\nif a < b:\n    pass\n```\n\n---\nsnake_case_name"
    )
    await scene.web.chat_postMessage(
        channel=GENERAL, text="x", blocks=[{"type": "markdown", "text": text}]
    )
    body = scene.page.locator("#messages .message-body")
    await expect(body.locator("h3")).to_have_text("Title")
    await expect(body.locator("em")).to_have_text("it")
    await expect(body.locator("strong")).to_have_text("bold")
    await expect(body.locator("s")).to_have_text("gone")
    await expect(body.locator("p > code")).to_have_text("a < b")
    await expect(body.locator("a")).to_have_attribute("href", "https://example.com/x_(y)")
    await expect(body.locator("ul > li > ul > li")).to_have_text("two")
    await expect(body.locator(".markdown > ul > li")).to_have_count(2)
    await expect(body.locator("ol")).to_have_attribute("start", "5")
    await expect(body.locator("blockquote")).to_have_text("quoted")
    await expect(body.locator("td")).to_have_text(["1", "x"])
    assert await body.locator("pre").inner_text() == "if a < b:\n    pass"
    await expect(body.locator("p", has_text="snake_case_name")).to_have_text("snake_case_name")


async def test_a_link_is_whole_whatever_its_label_has(scene: Scene) -> None:
    """A style may stand around a link or a mention; what looks like one in a label is text, in code it is code."""
    text = (
        "*bold <https://a.example/x|of *it* and `b` &lt;c&gt;>* `<https://a.example/y>` _<@U0YOU>_"
    )
    await scene.web.chat_postMessage(
        channel=GENERAL,
        text="x",
        blocks=[{"type": "section", "text": {"type": "mrkdwn", "text": text}}],
    )
    body = scene.page.locator("#messages .message-body")
    await expect(body.locator("strong > a")).to_have_text("of *it* and `b` <c>")
    await expect(body.locator("code")).to_have_text("<https://a.example/y>")
    await expect(body.locator("em > .mention")).to_have_text("@You")
    await expect(body.locator("a")).to_have_count(1)


@pytest.mark.long
async def test_rarer_markdown_is_drawn(scene: Scene) -> None:
    """Underlined headings, code by its indent, fences that only their own mark closes, and both emphases at once."""
    text = (
        "Title\n===\n\nSecond\n---\ntext\n\n    a <b>\n\n      c\n\n```\nx ```y\n```` no\n```\nafter ***both***"
        "\n```a`b\n\n- item\n    - inner\n\n3. three\n\n7) seven"
    )
    await scene.web.chat_postMessage(
        channel=GENERAL, text="x", blocks=[{"type": "markdown", "text": text}]
    )
    body = scene.page.locator("#messages .message-body")
    await expect(body.locator("h3")).to_have_text("Title")
    await expect(body.locator("h4")).to_have_text("Second")
    await expect(body.locator("pre")).to_have_count(2)
    assert await body.locator("pre").first.inner_text() == "a <b>\n\n  c"
    assert await body.locator("pre").last.inner_text() == "x ```y\n```` no"
    await expect(body.locator("strong > em")).to_have_text("both")
    await expect(body.locator("ul > li > ul > li")).to_have_text("inner")
    await expect(body.locator("ol").first).to_have_attribute("start", "3")
    await expect(body.locator("ol").last).to_have_attribute("start", "7")

"""The answers: what models really write, and what is hard to cut, to escape or to draw; by names, in the order of the pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.playground.slack.types import YOU

_PYTHON = "def area(r: float) -> float:\n    return 3.14159 * r**2  # <!here> & <b>\n"
_WORDS = "Orion runs each question in a sandbox of its own, and tells the thread what it did. "


def _rows(count: int, *, columns: int = 3) -> str:
    head = "| " + " | ".join(f"column {n}" for n in range(columns)) + " |\n"
    rule = "|" + "---|" * columns + "\n"
    return head + rule + "".join(
        "| " + " | ".join(f"r{row} c{n}" for n in range(columns)) + " |\n" for row in range(count)
    )  # fmt: skip


def _code(lines: int) -> str:
    return "".join(f"value_{n} = compute({n}, scale={n % 7})\n" for n in range(lines))


ANSWERS: Final[Mapping[str, str]] = {
    "plain words": "Yes. The build is green again since 14:02, and nothing else changed.",
    "heading at the start": "# Findings\nThe cache is cold.\n## Next\nWarm it.\n###### Sixth level\nDone.",
    "setext headings": "Findings\n========\n\nThe cache is cold.\n\nNext\n----\nWarm it.",
    "headings only": "# One\n## Two\n### Three\n#### Four\n#\n##### Five ###\n#hashtag is text",
    "sixty headings": "\n\n".join(f"### Point {n}\nShort." for n in range(1, 61)),
    "emphasis": "*it* **bold** ***both*** ~~gone~~ _it_ __bold__ snake_case_name 2 * 3 * 4 **a*b*c**",
    "broken emphasis": "**bold without end and *more, `code without end, ~~strike\n\n__ and ** alone",
    "inline code": "`a < b && c > d`, ``a ` b``, ` `` `, `<!channel>`, `**not bold**`, `|`",
    "nested list": "- one\n  - two\n    - three\n      - four\n        - five\n- one again\n\n  with a paragraph\n- last",
    "ordered lists": "1. first\n2. second\n   1. inner\n   2. inner two\n3. third\n\n7) seven\n8) eight",
    "mixed list": "1. one\n   - dash\n   * star\n   + plus\n2. two\n\n- [link](https://example.com) in an item\n- **bold** item",
    "loose list": "- one\n\n- two\n\n- three\n\ntext after",
    "long list": "\n".join(f"- item {n} of a long list" for n in range(1, 121)),
    "task list": "- [ ] open\n- [x] done\n  - [X] inner, done\n1. [ ] ordered\n- [] no box\n- [x](https://example.com) a link",
    "task list in a fence": "```md\n- [ ] stays as it is\n- [x] this, too\n```\n- [ ] but not this",
    "fence": f"Look:\n\n```python\n{_PYTHON}```\n\nThat is all.",
    "fence in a list": f"1. Write it:\n\n   ```python\n   {_PYTHON.splitlines()[0]}\n       return 0\n   ```\n2. Run it:\n   ```sh\n   python area.py\n   ```\n3. Done.",
    "fence in a nested list": "- outer\n  - inner\n    ```json\n    {\"a\": [1, 2, {\"b\": null}]}\n    ```\n  - next\n- last",
    "unclosed fence": f"It goes like this:\n\n```python\n{_PYTHON}",
    "unclosed fence in a list": "- one\n  ```\n  left open\n- two\n- three",
    "fences in fences": "````md\nWrite:\n```py\nx = 1\n```\n````\n\n~~~\n```\n~~~\n\nafter",
    "fence of backticks": "```\na `b` ``c`` ```d\n```` no end\n```\nafter",
    "tilde fence": "~~~ruby startline=3\nputs `date`\n~~~\ntext right after",
    "indented code": "Run:\n\n    make setup\n    make test   # <b>not bold</b>\n\nand wait.",
    "empty fences": "```\n```\n\n```py\n\n\n```\n\n~~~\n~~~",
    "diff": "```diff\n--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n-old = 1\n+new = 2\n```",
    "table": "| Name | Size | Note |\n|:-----|-----:|:----:|\n| a | 1 | `x \\| y` |\n| b | 20,000 | **bold** |\n| c |",
    "table without edges": "a | b\n--- | ---\n1 | 2\n3 | 4\n\nnot | a table",
    "table in a list": "- see:\n\n  | a | b |\n  |---|---|\n  | 1 | 2 |\n\n- next",
    "table of 200 columns": _rows(3, columns=200),
    "long table": _rows(400),
    "broken table": "| a | b |\n|---|\n| 1 | 2 |\n\n| a | b |\n\n|---|---|\n| 1 | 2 |\n\n|---|---|",
    "table with long cells": f"| key | value |\n|---|---|\n| a | {_WORDS * 6}|\n| {'x' * 120} | b |",
    "quotes": "> quoted\n> two lines\n\n> > nested\n> > > deeper\n> back\n\n>no space\nlazy line",
    "code in quotes": "> Look:\n>\n> ```sh\n> ls -la\n> ```\n> - item\n>   - inner\n\n> | a | b |\n> |---|---|\n> | 1 | 2 |",
    "deep quotes": ">" * 12 + " twelve deep\n\n" + "> " * 9 + "nine, with spaces",
    "links": "[plain](https://example.com) [parens](https://en.wikipedia.org/wiki/Orion_(constellation)) <https://example.com/a?b=c&d=e> https://example.com/x_(y). [title](https://example.com \"Title\")",
    "bad links": "[no target]() [script](javascript:alert(1)) [open](https://example.com [a [b] c](https://example.com/(a(b)c)) [ref][1]\n\n[1]: https://example.com/ref",
    "images": "![a chart](https://example.com/chart.png) and ![](https://example.com/none.png)\n\n[![badge](https://example.com/b.svg)](https://example.com)",
    "footnotes": "It was faster[^1], by a lot[^note].\n\n[^1]: On two cores.\n[^note]: Measured with `make bench`.",
    "html": "<details><summary>More</summary>\n\n**inside**\n\n</details>\n<br/> a<sup>2</sup> <script>alert(1)</script> <!-- comment --> &lt;b&gt; &amp; &copy; &#39;",
    "mentions": f"<!channel> <!here|here> <!subteam^S123|@team> @everyone @here <@U99999999> <@{YOU}> <#C1|general> mail@here.org",
    "slack tokens": "<https://example.com|label> *bold in mrkdwn* ~strike~ &lt;!channel&gt; <!date^1700000000^{date}|then> :tada: <mailto:a@b.c>",
    "escapes": r"\*not bold\* \`not code\` \# not a heading \[x\](y) a\|b \\ \<b\> 1\. one",
    "right to left": "# שלום עולם\n\nמרחבא **עברית** `code` 123\n\n- אחד\n- שתיים\n\n\u0627لعربية: **نص** مع [رابط](https://example.com) و English\n\n| אות | رقم |\n|---|---|\n| א | \u0661 |",
    "bidi controls": "user\u202etxt.exe\u202c and \u2066isolated\u2069 end",
    "emoji": "👍 👩‍👩‍👧‍👦 🇩🇪 👋🏽 ❤️ 1️⃣ \u2705 done, ⚠️ careful :warning: :not_an_emoji:",
    "many scripts": "Ελληνικά, Русский, 中文, 日本語, 한국어, ไทย, हिन्दी, Việt Nam, zalgo: Z̷̨a̶l̸g̵o̴",
    "mathematics": "$E = mc^2$, $$\\sum_{i=0}^n x_i$$, \\(a_b\\), x < y > z, 5 * 3 _ 2, 2^10",
    "long word": "x" * 3_000 + "\n\nand then " + "y" * 500,
    "long url": "See https://example.com/" + "path/" * 150 + "?q=" + "a" * 300 + " for it.",
    "very long line": _WORDS * 150,
    "line ends": "one\r\ntwo\rthree\n\r\n# heading\r\n- item\r- item\r\n\r\n```\r\ncode\r\n```\r\nend\x0bvertical\x0cfeed",
    "control characters": "bell \x07 escape \x1b[31mred\x1b[0m backspace \x08 delete \x7f zero\u200bwidth soft\u00adhyphen bom\ufeff nbsp\u00a0end",
    "tabs and spaces": "\tindented by a tab\n\ntext  \nwith a hard break\\\nand another\n\n \n\t\n   three spaces",
    "rules": "above\n\n---\n\nbetween\n\n***\n\n___\n- - -\n* * *\nbelow",
    "only punctuation": "***\n\n**\n\n|\n\n>\n\n-\n\n```",
    "long fence": f"All of it:\n\n```python\n{_code(600)}```\n\nThat was it.",
    "40 kB": "\n\n".join(f"## Part {n}\n\n{_WORDS * 8}\n\n- point\n- **point**\n\n```sh\necho {n}\n```" for n in range(56)),
    "everything at once": f"# Report <!channel>\n\n> *Summary*: **ok**\n\n1. Steps\n   - [x] build\n   - [ ] ship\n\n   ```python\n   {_PYTHON.splitlines()[0]}\n   ```\n\n{_rows(2)}\n---\n\n![plot](https://example.com/p.png) שלום 👍 [end](https://example.com/a_(b))\n\n```\nleft open",
}  # fmt: skip

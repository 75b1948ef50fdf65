"""Texts that the offline model always has ready."""

_LONG_CHARS = 30_000
_SLOW_WORDS = 40
_SLOW_SENTENCE = (
    "I am Orion's offline model and I write slowly so that you have time to press Stop."
)


def slow_text() -> str:
    """40 words."""
    return " ".join((_SLOW_SENTENCE.split(" ") * _SLOW_WORDS)[:_SLOW_WORDS])


def long_text() -> str:
    """At least 30,000 characters, in sections."""
    parts = ["# A long answer of the offline model", MARKDOWN_SAMPLE]
    size = sum(map(len, parts))
    number = 0
    while size < _LONG_CHARS:
        number += 1
        words = " ".join(f"word {number}.{index}" for index in range(1, 90))
        part = f"## Section {number}\n\n{words}.\n\n```python\nprint({number})\n```"
        parts.append(part)
        size += len(part) + 2
    return "\n\n".join(parts)


MARKDOWN_SAMPLE = """## What the offline model can format

Some **bold**, *italic*, ~~struck~~ and `inline code`, with a [link](https://example.com/?a=1&b=2).

1. First
2. Second
   - nested one
   - nested two

- [x] done
- [ ] open

| agent | state | seconds |
|:------|:-----:|--------:|
| anthropic | ready | 1.2 |
| none | `a \\| b` | 0 |

```python
def greet(name: str) -> str:
    return f"Hello <{name}> & welcome"
```

---

Not a mention: @here, <!channel>, <@U000000>. The end."""

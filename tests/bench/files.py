"""What a file of ten megabytes costs on its way to an agent, and on its way to people."""

import time
from collections.abc import Sequence
from statistics import median

from tests.bench.pool import open_orion
from tests.bench.scale import Bench
from tests.bench.table import Row
from tests.bench.turns import FIRST_ANSWER_TIMEOUT_S, ask, open_scene
from tests.e2e.harness import file_names, text_of
from tests.fake_slack_client import FakeSlackClient, open_client

SIZE = 10_000_000
COUNT = f"run: cat in/* 2>/dev/null | wc -c; echo counted {SIZE}"
LEAVE = f"run: mkdir -p out; head -c {SIZE} /dev/urandom > out/data.bin; echo left"
NOTHING = "run: mkdir -p out; echo left"
TARGET_S = 2.0
ENDED_WITHIN_S = 60.0


async def measure_files(bench: Bench) -> Sequence[Row]:
    """Local; from the message to its answer, or to the file in the thread; the baseline is the same question without the file."""
    data = bytes(range(256)) * (SIZE // 256)
    async with (
        open_scene(bench) as scene,
        open_client(scene.world.url) as person,
        open_orion(scene, {}, pool_size=1),
    ):
        await ask(person, timeout_s=FIRST_ANSWER_TIMEOUT_S)
        pairs = range(bench.scale.turn_pairs)
        brought = [
            (await _asked(person, COUNT, files={"data.bin": data}), await _asked(person, COUNT))
            for _ in pairs
        ]
        left = [
            (await _asked(person, LEAVE, shares="data.bin"), await _asked(person, NOTHING))
            for _ in pairs
        ]
    return (
        _row("10 MB to the agent, message to answer", brought),
        _row("10 MB to people, message to file", left),
    )


def _row(figure: str, pairs: Sequence[tuple[float, float]]) -> Row:
    return Row(
        figure=figure,
        unit="s",
        orion=median(one for one, _ in pairs),
        baseline=median(other for _, other in pairs),
        target=TARGET_S,
    )


async def _asked(
    person: FakeSlackClient, text: str, *, files: dict[str, bytes] | None = None, shares: str = ""
) -> float:
    """Seconds from a question, posted with its files, to its answer, or to the file that it shares."""
    root = await person.say(f"@Orion {text}", files=files)
    began_s = time.monotonic()
    if shares:
        await person.wait_for_reply(
            root, lambda reply: shares in file_names(reply), timeout_s=ENDED_WITHIN_S
        )
    else:
        await person.wait_for_reply(
            root, lambda reply: "This is what came back" in text_of(reply), timeout_s=ENDED_WITHIN_S
        )
    return time.monotonic() - began_s

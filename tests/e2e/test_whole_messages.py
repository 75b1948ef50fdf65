"""What people send besides words, on its way to a real agent, and what it leaves for them: files, pictures, forwarded messages, another app's card."""

import base64
import hashlib
import json

import pytest

from app.playground.slack.types import COLLEAGUE, PAGER
from tests.e2e.harness import Stage, file_names, text_of

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(180)]

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
CARD = {
    "title": "Disk full on web-1",
    "title_link": "https://m.acme.org/i/7",
    "fields": [{"title": "host", "value": "web-1"}],
}


async def told(stage: Stage, part: str) -> str:
    """Returns what the model was told with this in it."""
    requests = [json.dumps(one, ensure_ascii=False) for one in await stage.world.model_requests()]
    return next(request for request in requests if part in request)


async def test_files_are_there_byte_for_byte(shared: Stage) -> None:
    """Though the mention's own event lacks them; the second question of the thread finds them, too."""
    data = bytes(range(256)) * 40_000
    digest = hashlib.sha256(data).hexdigest()
    files = {"../data 1.bin": data, "empty.txt": b""}
    ts = await shared.client.say("@Orion run: sha256sum in/*data*1.bin", files=files)
    assert digest in text_of(await shared.answer(ts))
    again = await shared.client.say("@Orion run: cat in/*.bin | sha256sum", thread_ts=ts)
    assert digest in text_of(await shared.answer(again, thread_ts=ts))
    record = await shared.record(ts)
    assert [(file.name, file.size) for file in record.request.content.files] == [
        ("../data 1.bin", len(data)),
        ("empty.txt", 0),
    ]


@pytest.mark.long
async def test_a_picture_is_shown_to_the_model(shared: Stage) -> None:
    """As a picture, beside the words about it."""
    ts = await shared.client.say("@Orion what colour is this?", files={"pixel.png": PIXEL})
    assert f"[image/png, {len(PIXEL)} bytes]" in text_of(await shared.answer(ts))


async def test_a_file_without_a_word_is_a_question(shared: Stage) -> None:
    """Whichever of the two events comes first, and though one of them has neither words nor file."""
    ts = await shared.client.say("@Orion", files={"notes.txt": b"some notes"})
    assert "notes.txt" in text_of(await shared.answer(ts))


@pytest.mark.long
async def test_a_forwarded_message_is_read(shared: Stage) -> None:
    """With its author, its channel and its file, which is fetched."""
    theirs = await shared.client.say(
        "the deploy is red since 14:02",
        channel="random",
        user=COLLEAGUE,
        files={"trace.log": b"boom"},
    )
    ts = await shared.client.say("@Orion run: cat in/trace.log", forward=("random", theirs))
    assert "boom" in text_of(await shared.answer(ts))
    request = await told(shared, "the deploy is red since 14:02")
    assert "Forwarded message by Sam Colleague / Sam in #random" in request


async def test_a_card_of_another_app_is_read(shared: Stage) -> None:
    """At the root of the thread in which Orion is asked; the app itself asks nothing, though it mentions Orion."""
    card = await shared.client.say("@Orion look", user=PAGER, attachments=[CARD])
    ts = await shared.client.say("@Orion what is this?", thread_ts=card)
    await shared.answer(ts, thread_ts=card)
    request = await told(shared, "Disk full on web-1 (https://m.acme.org/i/7)")
    assert "host: web-1" in request
    assert len(await shared.client.replies(card)) == 2


async def test_what_an_agent_leaves_is_shared_once(shared: Stage) -> None:
    """In the thread, below the answer; the next answer does not share it again, but for what has changed."""
    ts = await shared.client.say(
        "@Orion run: mkdir -p out && seq 99 > out/all.txt && seq 9 > out/few.txt"
    )
    await shared.answer(ts)
    again = await shared.client.say("@Orion run: seq 5 > out/few.txt", thread_ts=ts)
    await shared.answer(again, thread_ts=ts)
    replies = await shared.client.replies(ts)
    left = [name for reply in replies for name in file_names(reply) if name.endswith(".txt")]
    assert left == ["all.txt", "few.txt", "few.txt"]
    assert [file.name for file in (await shared.record(ts)).result.files] == ["all.txt", "few.txt"]


@pytest.mark.long
async def test_a_secret_is_not_shared(shared: Stage) -> None:
    """Neither as a file nor by its name; who asked is told."""
    ts = await shared.client.say(
        "@Orion run: mkdir -p out && printf 'sk-ant-%040d' 7 > out/key.txt"
    )
    answer = await shared.answer(ts)
    assert "Not shared: key.txt (there is a secret in it)." in text_of(answer)
    assert not [name for reply in await shared.client.replies(ts) for name in file_names(reply)]

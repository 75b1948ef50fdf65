"""Rules of `orion.toml` in a real service: the repository of a channel, of a word, and buttons where it is open which one is meant."""

from pathlib import Path

import pytest

from app.playground.slack.types import YOU, JsonObject
from app.slack.actions import PICK_ACTIONS
from app.web.hosting import serve
from tests.e2e.conftest import OpenOrion
from tests.e2e.harness import Stage, World, blocks_of_type, has_stop_button, run_of, text_of
from tests.git_server import GitServer, settings_for

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(240)]

RULES = """
[channels.{channel}]
repo = "acme/shop"
rules = [{{ words = ["invoice"], repo = "acme/billing" }}]

[[rules]]
words = ["website"]
repo = "acme/site"
"""


async def answer_behind(stage: Stage, ts: str, known: list[str]) -> JsonObject:
    """The final message of the run in this thread that none of the known ones is."""
    return await stage.client.wait_for_reply(
        ts,
        lambda reply: (
            run_of(reply) is not None and run_of(reply) not in known and not has_stop_button(reply)
        ),
        timeout_s=60,
    )


@pytest.mark.long
@pytest.mark.parametrize("via", ["http", pytest.param("socket", marks=pytest.mark.long)])
async def test_a_channels_a_words_and_a_chosen_repository(
    world: World, start_orion: OpenOrion, tmp_path: Path, via: str
) -> None:
    """Each thread works in the right one; the question with two waits for the button, and goes on once."""
    server = GitServer(root=tmp_path / "git")
    for name in ("shop", "billing", "site"):
        server.filled(f"acme/{name}", {"NAME": f"this is {name}\n"})
    own = {"SLACK_APP_TOKEN": world.config.app_token} if via == "socket" else {}
    async with (
        serve(server.app()) as url,
        start_orion(
            world,
            **settings_for(url),
            **own,
        ) as stage,
    ):
        await stage.orion.terminate()
        channel = stage.channel_id("general")
        (stage.orion.directory / "orion.toml").write_text(RULES.format(channel=channel))
        await stage.orion.start()
        assert "this is shop" in await stage.ask("@Orion run: cat NAME")
        assert "this is billing" in await stage.ask("@Orion run: cat NAME # of the invoice")
        assert "this is site" not in await stage.ask("@Orion run: cat NAME", channel="random")

        ts = await stage.client.say("@Orion run: cat NAME # the invoice on the website")
        message = await stage.answer(ts)
        assert "Which repository do you mean" in text_of(message)
        (block,) = [one for one in message["blocks"] if one["type"] == "actions"]
        labels = [one["text"]["text"] for one in block["elements"]]
        assert labels[:2] == ["acme/billing", "acme/site"]
        assert labels[-1] == "No repository"
        pressed = await stage.client.press(message, PICK_ACTIONS[1])
        assert pressed["ok"]
        known = [str(stage.run_id(ts))]
        answer = await answer_behind(stage, ts, known)
        assert "this is site" in text_of(answer)
        assert f"acme/site, chosen by <@{YOU}>" in str(answer["blocks"])
        settled = await stage.client.wait_for_reply(
            ts,
            lambda reply: reply["ts"] == message["ts"] and not blocks_of_type(reply, "actions"),
        )
        assert settled["text"] == f"Which repository is meant? acme/site, chosen by <@{YOU}>."
        edited = await stage.client.say("@Orion run: cat NAME # the invoice on the website")
        question = await stage.answer(edited)
        await stage.client.edit(edited, "@Orion run: cat NAME # the website")
        answer = await answer_behind(stage, edited, [str(run_of(question))])
        assert "this is site" in text_of(answer)
        deleted = await stage.client.say("@Orion run: cat NAME # the invoice on the website")
        question = await stage.answer(deleted)
        await stage.client.delete(deleted)
        answer = await answer_behind(stage, deleted, [str(run_of(question))])
        assert "Stopped by" in str(answer["blocks"])
        later = await stage.client.say("@Orion run: cat NAME # the invoice", thread_ts=ts)
        assert "this is site" in text_of(await stage.answer(later, thread_ts=ts))

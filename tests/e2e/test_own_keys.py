"""People's own keys in the whole service: given in a modal, used for their runs alone, found nowhere."""

import asyncio
import json

import pytest

from app.errors import ErrorCode
from app.playground.model.question import REVOKED
from app.playground.slack.types import COLLEAGUE, EXTERNAL, YOU
from app.playground.stack import OFFLINE_MODEL_KEY
from app.runs.testing import RunState
from app.slack.actions import KEYS_ACTION
from tests.e2e.conftest import OpenOrion
from tests.e2e.giving_keys import OWN, SECRET, ask_settings, give_key, open_modal
from tests.e2e.harness import Stage, World, text_of
from tests.e2e.secret_scan import KEYS, scan
from tests.e2e.test_budgets import PRICES

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(180)]


async def _key_of(stage: Stage, question: str, *, user: str = YOU) -> tuple[str, str]:
    """With which key a question was answered, and the answer."""
    ts = await stage.client.say(f"@Orion {question}", user=user)
    said = text_of(await stage.answer(ts))
    asked = [one for one in await stage.world.model_requests() if question in str(one["body"])]
    return asked[-1]["headers"]["x-api-key"], said


@pytest.mark.long
async def test_a_persons_requests_are_asked_with_their_own_key(
    world: World, start_orion: OpenOrion
) -> None:
    """Theirs alone, also after a crash; it is in no message, file, log or trace, and taken back it is used no more."""
    async with start_orion(world, ORION_OWN_KEYS_SECRET=SECRET) as stage:
        view = await open_modal(stage)
        assert [block.get("block_id") for block in view["blocks"] if block["type"] == "input"] == [
            *("anthropic", "openai", "gemini")
        ]
        sent = await stage.client.submit(dict(view), {"anthropic": "two words", "openai": OWN})
        assert sent["errors"] == {
            "anthropic": "A key has neither blanks nor line ends, nor letters beyond ASCII."
        }
        sent = await stage.client.submit(dict(view), {"anthropic": f" {OWN}\n"})
        assert (sent["ok"], sent["errors"]) == (True, {})
        assert (await _key_of(stage, "hello mine"))[0] == OWN
        assert (await _key_of(stage, "hello theirs", user=COLLEAGUE))[0] == OFFLINE_MODEL_KEY
        await stage.orion.kill9()
        await stage.orion.start()
        assert (await _key_of(stage, "hello again"))[0] == OWN
        assert "your own for anthropic, else Orion's" in text_of(await ask_settings(stage))
        assert "your own" not in text_of(await ask_settings(stage, user=COLLEAGUE))

        ts = await stage.client.say("@Orion run: echo bird-in-the-mine > bird")
        await stage.answer(ts)
        found = await scan(stage, {**KEYS, "own key": OWN}, there="bird-in-the-mine", thread_ts=ts)
        assert found["log"] > 0

        view = await open_modal(stage)
        hints = {block["block_id"]: block.get("hint") for block in view["blocks"]}
        assert hints["anthropic"]["text"].startswith("There is one that ends in 6789")
        assert hints["openai"] is None
        assert OWN not in str(view)
        sent = await stage.client.submit(dict(view), {"anthropic": "", "forget": ["anthropic"]})
        assert sent["ok"]
        assert (await _key_of(stage, "hello without"))[0] == OFFLINE_MODEL_KEY


@pytest.mark.long
async def test_what_goes_wrong_with_an_own_key_is_its_persons_to_mend(
    world: World, start_orion: OpenOrion
) -> None:
    """Refused by the model, or sealed with another secret; who has none where the operator has none is told how to give one."""
    async with start_orion(
        world, ORION_OWN_KEYS_SECRET=SECRET, ANTHROPIC_API_KEY="", OPENAI_API_KEY=""
    ) as stage:
        assert await _failed(stage, "hello") == (
            "I have no key for the models of anthropic; write settings and press Your model keys to give one of your own."
        )
        await give_key(stage, OWN)
        assert (await _key_of(stage, "hello mine"))[0] == OWN
        await give_key(stage, f"{OWN}-{REVOKED}")
        assert await _failed(stage, "hello again") == (
            "The model did not accept your own key; write settings and press Your model keys to change it or take it back."
        )
        assert await stage.orion.terminate() == 0
        stage.orion.environment |= {"ORION_OWN_KEYS_SECRET": SECRET[::-1]}
        await stage.orion.start()
        assert (await _failed(stage, "hello once more")).startswith(
            "I cannot read your own key for anthropic any more; write settings"
        )
        view = await open_modal(stage)
        assert "cannot be read any more" in str(view)
        code, shown = await stage.cli("doctor")
        assert code == 1
        assert "FAIL own keys   1 of people's keys were sealed with another" in shown
        code, shown = await stage.cli("doctor", ORION_OWN_KEYS_SECRET=f"{SECRET[::-1]},{SECRET}")
        assert code == 0, shown
        assert "own keys   taken, and all can be opened" in shown


async def _failed(stage: Stage, question: str) -> str:
    ts = await stage.client.say(f"@Orion {question}")
    said = text_of(await stage.answer(ts))
    run = await stage.record(ts)
    assert (run.state, run.result.error_code) == (RunState.FAILED, ErrorCode.REQUEST_INVALID)
    return said.splitlines()[0]


@pytest.mark.long
async def test_budgets_are_not_for_what_people_pay_themselves(
    world: World, start_orion: OpenOrion
) -> None:
    """Neither keep them from asking nor count it, also in the next process; the price is told all the same."""
    async with start_orion(world, ORION_OWN_KEYS_SECRET=SECRET) as stage:
        assert await stage.orion.terminate() == 0
        toml = stage.orion.directory / "orion.toml"
        await asyncio.to_thread(toml.write_text, PRICES)
        stage.orion.environment |= {"ORION_BUDGET_DAY_USD": "0.05"}
        await stage.orion.start()
        await give_key(stage, OWN)
        for _ in range(2):
            key, said = await _key_of(stage, "tell me much of it")
            assert (key, "$" in said) == (OWN, True)
            await stage.orion.kill9()
            await stage.orion.start()
        key, _said = await _key_of(stage, "hello there", user=COLLEAGUE)
        assert key == OFFLINE_MODEL_KEY  # it was not used up before, and is now
        ts = await stage.client.say("@Orion hello", user=COLLEAGUE)
        assert (await stage.ended(ts)).result.error_code == ErrorCode.BUDGET_EXCEEDED
        assert (await _key_of(stage, "hello mine"))[0] == OWN


@pytest.mark.long
async def test_only_where_the_operator_allows_it(world: World, start_orion: OpenOrion) -> None:
    """Without the secret there is no button, and a modal that is sent all the same is not taken."""
    async with start_orion(world) as stage:
        message = await ask_settings(stage)
        assert KEYS_ACTION not in json.dumps(message["blocks"])
        trigger = world.fake_slack.modals.trigger(YOU)
        view = world.fake_slack.modals.open(trigger, FORGED)
        sent = await stage.client.submit(view, {"anthropic": OWN})
        assert sent["ok"]
        assert (await _key_of(stage, "hello forged"))[0] == OFFLINE_MODEL_KEY


async def test_people_of_other_companies_give_none(world: World, start_orion: OpenOrion) -> None:
    """They are known to Orion by its own workspace alone."""
    async with start_orion(
        world, ORION_OWN_KEYS_SECRET=SECRET, ORION_ALLOW_EXTERNAL="true"
    ) as stage:
        message = await ask_settings(stage, user=EXTERNAL, channel="partners")
        pressed = await stage.client.press(dict(message), KEYS_ACTION, user=EXTERNAL)
        assert (pressed["ok"], pressed["view"]) == (True, None)
        view = world.fake_slack.modals.open(world.fake_slack.modals.trigger(EXTERNAL), FORGED)
        sent = await stage.client.submit(view, {"anthropic": OWN}, user=EXTERNAL)
        assert sent["errors"] == {"anthropic": "This is for members of this workspace."}


FORGED = {
    "type": "modal",
    "callback_id": "orion_keys",
    "title": {"type": "plain_text", "text": "Keys"},
    "submit": {"type": "plain_text", "text": "Save"},
    "blocks": [
        {
            "type": "input",
            "block_id": "anthropic",
            "label": {"type": "plain_text", "text": "Key"},
            "element": {"type": "plain_text_input", "action_id": "key"},
        }
    ],
}

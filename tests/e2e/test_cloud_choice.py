"""Where a thread's sandbox is: the setting, a channel's own in `orion.toml`, the message's word; two clouds and this machine."""

from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.e2e.clouds import CLOUDS, KEY, QUICK_RETRIES
from tests.e2e.harness import open_orion, open_world, text_of
from tests.e2e.orion_process import new_state_dir
from tests.emulators.machine_network import Address
from tests.ports import free_port

pytestmark = [
    pytest.mark.long,
    pytest.mark.e2e,
    pytest.mark.bubblewrap,
    pytest.mark.machines,
    pytest.mark.timeout(300),
]


async def test_each_thread_goes_where_it_was_sent(prepared: Path, tmp_path: Path) -> None:
    """And stays there; `cloud` is the one that this Orion is set up for first."""
    state_dir, port = new_state_dir(tmp_path), free_port()
    async with open_world(QUICK_RETRIES) as world:
        ports = (port, urlsplit(world.url).port or 0)
        internet = [Address(host="127.0.0.1", port=number) for number in ports]
        with ExitStack() as stack:
            clouds = {name: stack.enter_context(CLOUDS[name](internet)) for name in CLOUDS}
            settings = {
                key: value for one in clouds.values() for key, value in one.settings.items()
            }
            settings |= {
                "ANTHROPIC_API_KEY": KEY,
                "ORION_PORT": str(port),
                "ORION_PUBLIC_URL": f"http://127.0.0.1:{port}",
                "ORION_SANDBOX": "local",
            }
            async with open_orion(world, state_dir, prepared, **settings) as stage:
                random = stage.channel_id("random")
                toml = stage.orion.directory / "orion.toml"
                toml.write_text(f'[channels.{random}]\nsandbox = "deno"\n')
                assert await stage.orion.terminate() == 0
                await stage.orion.start()

                here = await stage.client.say("@Orion run: id -un")
                await stage.answer(here)
                assert (await stage.record(here)).provider == "local"

                channel = await stage.client.say("@Orion run: echo 4711 > notes", channel="random")
                await stage.answer(channel, channel="random", timeout_s=150)
                assert (await stage.record(channel, channel="random")).provider == "deno"

                word = await stage.client.say("@Orion /vercel run: echo 4712 > notes")
                await stage.answer(word, timeout_s=150)
                assert (await stage.record(word)).provider == "vercel"
                again = await stage.client.say("@Orion run: cat notes", thread_ts=word)
                assert "4712" in text_of(await stage.answer(again, thread_ts=word))
                assert (await stage.record(again)).provider == "vercel"
                cloud = await stage.client.say("@Orion sandbox=cloud run: id -un", channel="random")
                assert "agent" in text_of(await stage.answer(cloud, channel="random"))
                assert (await stage.record(cloud, channel="random")).provider == "vercel"
            for one in clouds.values():
                assert one.running() == 0
                assert KEY.encode() not in one.sent()

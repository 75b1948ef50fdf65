"""Pictures of messages on their way to a model."""

import base64
import json
from pathlib import Path

from agent_scripts.adapter import AgentPaths, AgentTurn, TurnImage, TurnMessage
from agent_scripts.agents.anthropic.adapter import AnthropicAdapter
from agent_scripts.agents.codex.adapter import CodexAdapter
from agent_scripts.inside.messages import blocks_of

PATHS = AgentPaths(work="/work", home="/home", run="/run/1", environment="/env")


def turn(*images: Path) -> AgentTurn:
    shown = tuple(TurnImage(path=str(path), media_type="image/png") for path in images)
    return AgentTurn(
        messages=(TurnMessage(role="user", text="what is it?", images=shown),),
        system_prompt="",
        model="m",
        max_output_tokens=1,
        max_turns=1,
        run_token="t",
        paths=PATHS,
    )


def test_our_own_script_shows_pictures_before_the_words(tmp_path: Path) -> None:
    """Each as base64; one that is gone, empty or too large stays a file that the words name."""
    good, empty, large = (tmp_path / name for name in ("good.png", "empty.png", "large.png"))
    good.write_bytes(b"png")
    empty.write_bytes(b"")
    large.write_bytes(b"x" * 3_750_001)
    asked = turn(tmp_path / "gone.png", good, empty, large, tmp_path)
    request = json.loads(AnthropicAdapter().command(asked).files[0].data)
    picture, words = blocks_of(request["messages"][0])
    data = base64.b64encode(b"png").decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    assert picture == {"type": "image", "source": source}
    assert words == {"type": "text", "text": "what is it?"}


def test_a_request_has_so_many_bytes_of_pictures(tmp_path: Path) -> None:
    """The first ones are shown."""
    paths = [tmp_path / f"{n}.png" for n in range(7)]
    for path in paths:
        path.write_bytes(b"x" * 3_700_000)
    request = json.loads(AnthropicAdapter().command(turn(*paths)).files[0].data)
    assert [block["type"] for block in blocks_of(request["messages"][0])] == [*["image"] * 5, "text"]  # fmt: skip


def test_codex_is_given_pictures_by_their_paths(tmp_path: Path) -> None:
    """Its server reads them."""
    command = CodexAdapter().command(turn(tmp_path / "a.png", tmp_path / "b c.png"))
    (request,) = (file.data for file in command.files if file.path.endswith("/request.json"))
    assert json.loads(request)["images"] == [f"{tmp_path}/a.png", f"{tmp_path}/b c.png"]

"""No attempt of the table gets bytes to an origin that it must not, each one is answered or cut, and what must pass passes."""

from pathlib import Path

import pytest

from tests.egress.bypasses import BYPASSES, Bypass
from tests.egress.paper import render
from tests.egress.rig import ANSWER, open_rig


def test_the_document_is_the_table() -> None:
    """`make network` renders it."""
    assert Path("docs/network.md").read_text() == render()


@pytest.mark.parametrize("bypass", BYPASSES, ids=str)
async def test_bypass(bypass: Bypass, tmp_path: Path) -> None:
    async with open_rig(tmp_path, bypass) as rig:
        told = await rig.send(bypass.pieces)
        arrived = b"".join(rig.origin.arrived)
        if bypass.passes:
            assert told.endswith(ANSWER)
            assert bypass.arrives in arrived
            assert not bypass.never_arrives or bypass.never_arrives not in arrived
        else:
            assert arrived == b""
            assert ANSWER not in told
            assert rig.tally.uses
            assert not any(one.connections for one in rig.tally.uses)

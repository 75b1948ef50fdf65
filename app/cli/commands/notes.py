"""What people told Orion to remember, for the operator: all of a channel's, all of a person's; shown, and forgotten."""

from collections.abc import Sequence
from typing import Any

from app.cli.commands.runs import OPERATOR, open_records
from app.runs.model import ChannelNote
from app.settings.settings import Settings


async def find_notes(settings: Settings, *, channel: str, person: str) -> Sequence[ChannelNote]:
    """Returns those of a channel and a person, by their Slack ids; an empty one is for all."""
    async with open_records(settings) as store:
        return await store.channel_notes.find(channel=channel, user=person)


async def forget_notes(settings: Settings, *, channel: str, person: str, number: int | None) -> int:
    """Forgets those of a channel and a person, or the one of that number; returns how many there were."""
    async with open_records(settings) as store:
        found = await store.channel_notes.find(channel=channel, user=person)
        meant = [note for note in found if number in (None, note.number)]
        for note in meant:
            await store.channel_notes.forget(note.team, note.channel, [note.number], by=OPERATOR)
    return len(meant)


def as_row(note: ChannelNote) -> dict[str, Any]:
    """Returns a note's fields, as JSON has them."""
    return {
        "team": note.team,
        "channel": note.channel,
        "number": note.number,
        "user": note.user,
        "name": note.name,
        "at": note.at.isoformat(),
        "text": note.text,
    }


def line_of(row: dict[str, Any]) -> str:
    """Returns a row as a line for people."""
    return f"{row['channel']:12} {row['number']:>4} {row['at'][:16]} {row['user']:12} {row['text']}"

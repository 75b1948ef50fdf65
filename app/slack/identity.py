"""Who the bot is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BotIdentity:
    """Who the bot token belongs to."""

    team_id: str
    bot_id: str
    bot_user_id: str

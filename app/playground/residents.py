"""Who and what is in the workspace at the start."""

from app.playground.slack_types import (
    BOT_USER_ID,
    COLLEAGUE,
    EXTERNAL,
    EXTERNAL_TEAM_ID,
    GENERAL,
    PARTNERS,
    RANDOM,
    YOU,
    Channel,
    Person,
)


def people_at_start() -> list[Person]:
    """You, a colleague, somebody of another company, and the bot."""
    return [
        Person(id=YOU, name="You", real_name="You"),
        Person(id=COLLEAGUE, name="Sam", real_name="Sam Colleague"),
        Person(id=EXTERNAL, name="Robin", real_name="Robin of Acme", team_id=EXTERNAL_TEAM_ID),
        Person(id=BOT_USER_ID, name="Orion", real_name="Orion", is_bot=True),
    ]


def channels_at_start() -> list[Channel]:
    """Two open channels, one shared with another company, and a DM with the bot for each person."""
    own = {YOU, COLLEAGUE, BOT_USER_ID}
    rooms = [
        Channel(id=GENERAL, name="general", members=set(own)),
        Channel(id=RANDOM, name="random", members=set(own)),
        Channel(id=PARTNERS, name="partners", members=own | {EXTERNAL}, is_ext_shared=True),
    ]
    direct = [
        Channel(
            id=f"D0{user[2:]}",
            name=f"dm-{user[2:].lower()}",
            members={user, BOT_USER_ID},
            im_user=user,
            is_ext_shared=user == EXTERNAL,
        )
        for user in (YOU, COLLEAGUE, EXTERNAL)
    ]
    return [*rooms, *direct]

"""Names of sessions, which people read in branches and pull requests."""

import re

from app.runs.session import ADJECTIVES, ANIMALS, new_name

UNWANTED = """
sexy naughty girlish gay illegal fat bald curvy skinny ugly hot horned loose hairy wet hard thick
juicy alluring provocative seductive lusty married straight dominant submissive obedient macho meek
crazy mad daft hysterical insane psychedelic drunk high stoned savage primitive aboriginal native
barbaric demonic godlike heretic holy hallowed righteous orthodox devout fanatic liberal radical
imperial military militant aggressive violent venomous vengeful furious berserk devious
manipulative greedy arrogant snobbish sloppy stupid dumb lazy black white brown yellow red pink
blond tan ginger ebony ivory kickass woodoo mutant uber illegal rebel rampant uncovered private
booby tit cock cockatoo beaver ass donkey mule bitch pussy swallow woodpecker pecker nuthatch
boobook ape monkey gorilla baboon macaque chimpanzee bonobo orangutan gibbon mandrill capuchin
marmoset pig hog swine boar cow sow bull stallion mongrel rat mole vermin leech worm maggot slug
bug louse tick parasite cuckoo bustard shrew vixen cougar crow dodo turkey chicken jackal vulture
snake viper serpent skunk weasel sloth sponge hippo whale heifer lemming
"""
"""Words that somebody would rather not find in a pull request, alone or beside another."""


def test_no_word_of_a_name_is_unwanted() -> None:
    """All words are looked at; each is one, of small letters, and there once."""
    words = (*ADJECTIVES, *ANIMALS)
    assert not set(UNWANTED.split()).intersection(words)
    assert len(set(words)) == len(words)
    assert all(re.fullmatch("[a-z]{2,13}", word) for word in words)


def test_names_are_many() -> None:
    """So many that five drawn for a new session are not all taken while tens of thousands are kept."""
    assert len(ADJECTIVES) * len(ANIMALS) >= 100_000
    adjective, animal = new_name().split("-")
    assert adjective in ADJECTIVES
    assert animal in ANIMALS

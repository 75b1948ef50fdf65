"""What people are told of what a sandbox reached for in vain."""

from app.egress.tally import MAX_TOLD_HOSTS, NOT_LISTED, NOT_PUBLIC, Tally, render_refused


def test_nothing_refused_is_nothing_told() -> None:
    tally = Tally()
    tally.refuse("a.example:443", NOT_LISTED)
    with tally.connected("a.example:443"):
        pass
    assert render_refused(tally) == ""


def test_the_reason_says_what_helps() -> None:
    """A host that is on the list is not to be put on the list."""
    tally = Tally()
    for _ in range(2):
        tally.refuse("index.example:443", NOT_PUBLIC)
    assert render_refused(tally) == (
        "Reached for and refused: `index.example:443` (2 times), which leads to an address that is not public."
        " A host of your own network has `private:` before it there."
    )
    tally.refuse("other.example:443", NOT_LISTED)
    tally.refuse("gone.example:443", "cannot be looked up")
    told = render_refused(tally)
    assert "; `other.example:443`; `gone.example:443`, which cannot be looked up." in told
    assert "The operator can allow hosts: ORION_EGRESS_HOSTS" in told


def test_many_and_nameless_ones_are_counted() -> None:
    tally = Tally()
    tally.refuse("", "http://169.254.169.254/ is an address")
    for number in range(MAX_TOLD_HOSTS + 2):
        tally.refuse(f"h{number}.example:443", NOT_LISTED)
    told = render_refused(tally)
    assert told.startswith(
        "Reached for and refused: a request that names no host; `h0.example:443`"
    )
    assert "; 3 more." in told

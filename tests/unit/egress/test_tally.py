"""What people are told of what a sandbox reached for in vain."""

from app.egress.tally import (
    MAX_TOLD_HOSTS,
    MAX_USES,
    NOT_LISTED,
    NOT_PUBLIC,
    OTHERS,
    HostUse,
    Tally,
    render_refused,
)


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
        " A host of your own network stands there as `private:` and its name."
    )
    tally.refuse("other.example:443", NOT_LISTED)
    tally.refuse("gone.example:443", "cannot be looked up")
    told = render_refused(tally)
    assert "; `other.example:443`; `gone.example:443`, which cannot be looked up." in told
    assert "The operator can allow hosts: ORION_EGRESS_HOSTS" in told


def test_each_reason_is_kept() -> None:
    """What an operator looks for may be the second; a host that was reached is not told to the person, but kept."""
    tally = Tally()
    with tally.connected("a.example:443"):
        tally.move("a.example:443", sent_bytes=5)
    for reason in ("names another server in its TLS", "cannot be looked up", "cannot be looked up"):
        tally.refuse("a.example:443", reason)
    tally.refuse("", "127.0.0.1:80 is an address")
    tally.refuse("", "169.254.169.254:80 is an address")
    assert render_refused(tally) == "Reached for and refused: 2 requests that name no host."
    again = Tally(tally.uses)
    again.refuse("a.example:443", "cannot be looked up")
    again.move("a.example:443", sent_bytes=5)
    assert [(use.host, use.sent_bytes, use.refusals, use.reason) for use in again.uses] == [
        ("a.example:443", 10, 0, ""),
        ("a.example:443", 0, 1, "names another server in its TLS"),
        ("a.example:443", 0, 3, "cannot be looked up"),
        ("", 0, 1, "127.0.0.1:80 is an address"),
        ("", 0, 1, "169.254.169.254:80 is an address"),
    ]


def test_who_makes_up_names_fills_no_record() -> None:
    tally = Tally()
    for number in range(3 * MAX_USES):
        assert tally.refuse(f"h{number}.example:443", NOT_LISTED) == number + 1
    assert len(tally.uses) == MAX_USES + 1
    assert tally.uses[-1] == HostUse(host=OTHERS, refusals=2 * MAX_USES)


def test_many_and_nameless_ones_are_counted() -> None:
    tally = Tally()
    tally.refuse("", "http://169.254.169.254/ is an address")
    for number in range(MAX_TOLD_HOSTS + 2):
        tally.refuse(f"h{number}.example:443", NOT_LISTED)
    told = render_refused(tally)
    assert told.startswith(
        "Reached for and refused: a request that names no host; `h0.example:443`"
    )
    assert "; 2 more." in told

"""Who has had how much."""

from gateway.hold.shares import Shares


def test_nobody_saves_up_credit_while_away() -> None:
    shares = Shares()
    shares.open("busy", 1000)
    for _ in range(10):
        shares.serve("busy", 100)
    shares.open("back", 100)
    assert shares.tag("back") >= 900
    assert shares.lead("back") == 0
    assert shares.lead("busy") == 100


def test_a_tag_stays_while_its_tenant_waits() -> None:
    shares = Shares()
    shares.open("waits", 10)
    shares.open("busy", 1000)
    before = shares.tag("waits")
    for _ in range(5):
        shares.serve("busy", 100)
    assert shares.tag("waits") == before
    assert shares.lead("busy") == 500


def test_alone_nobody_leads() -> None:
    shares = Shares()
    shares.open("a", 5)
    shares.open("b", 7)
    shares.serve("a", 5)
    shares.close("b", 7)
    assert shares.tenants == 1
    assert shares.lead("a") == 0


def test_tenants_that_come_once_are_forgotten() -> None:
    shares = Shares()
    for number in range(5000):
        shares.open(f"t{number}", 10)
        shares.serve(f"t{number}", 10)
        shares.close(f"t{number}", 10)
    assert len(shares) < 1000
    assert shares.tenants == 0

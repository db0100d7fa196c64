from dataclasses import replace

from gateway.index.pulses import FORGET_S, Pulses
from tests.gateway.fakes import heartbeat

BEAT = heartbeat("a")


def test_a_heartbeat_that_never_changes_is_of_nobody() -> None:
    pulses = Pulses()
    assert pulses.is_alive("a", BEAT, 0.0)
    assert pulses.is_alive("a", BEAT, 2.0)
    assert not pulses.is_alive("a", BEAT, 2.1)
    assert pulses.is_alive("a", replace(BEAT, beats=1), 2.2)


def test_without_a_heartbeat_it_lives_as_long_as_one_would() -> None:
    pulses = Pulses()
    assert not pulses.may_be_alive("a", 0.0)
    pulses.is_alive("a", BEAT, 0.0)
    assert pulses.may_be_alive("a", 2.0)
    assert not pulses.may_be_alive("a", 2.1)


def test_what_nobody_could_look_at_was_not_late() -> None:
    pulses = Pulses()
    pulses.is_alive("dead", replace(BEAT, replica="dead"), 0.0)
    pulses.is_alive("a", BEAT, 3.0)
    pulses.look(3.5)
    pulses.connected(60.0)
    assert pulses.is_alive("a", BEAT, 61.0)
    assert not pulses.is_alive("dead", replace(BEAT, replica="dead"), 61.0)


def test_the_dead_are_forgotten() -> None:
    pulses = Pulses()
    pulses.is_alive("a", BEAT, 0.0)
    pulses.look(FORGET_S + 0.1)
    assert len(pulses) == 0


def test_a_heartbeat_that_only_gets_more_time_is_of_a_live_replica() -> None:
    """Redis is full."""
    pulses = Pulses()
    assert pulses.is_alive("a", BEAT, 0.0, written_at=0.0)
    assert pulses.is_alive("a", BEAT, 1.0, written_at=0.9)
    assert pulses.is_alive("a", BEAT, 2.5, written_at=0.91)
    assert not pulses.is_alive("a", BEAT, 3.1, written_at=0.89)

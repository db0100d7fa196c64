from replica.timing.pace import Pace


class World:
    """A clock, and a sleep that ends late by `late_s`."""

    def __init__(self, late_s: float = 0.0) -> None:
        self.now = 50.0
        self.late_s = late_s
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept.append(seconds)
        self.now += seconds + self.late_s

    def pace(self) -> Pace:
        pace = Pace(self.clock, self.sleep)
        pace.begin()
        return pace


def test_our_own_work_is_inside_a_step_s_time() -> None:
    world = World()
    pace = world.pace()
    for _ in range(3):
        world.now += 0.004
        pace.wait(0.010)
    assert round(world.now - 50, 9) == 0.030
    assert [round(seconds, 9) for seconds in world.slept] == [0.006] * 3
    assert pace.lost_s == 0


def test_a_sleep_that_ends_late_shortens_the_next() -> None:
    world = World(late_s=0.002)
    pace = world.pace()
    for _ in range(100):
        pace.wait(0.010)
    assert round(world.now - 50, 9) == 100 * 0.010 + 0.002
    assert pace.lost_s == 0


def test_work_for_an_idle_engine_begins_then_and_not_at_its_last_step() -> None:
    world = World()
    pace = world.pace()
    pace.wait(0.010)
    world.now += 5
    pace.begin()
    pace.wait(0.010)
    assert round(world.now - 50, 9) == 5.020


def test_a_machine_that_stood_still_catches_up_a_little_and_counts_the_rest() -> None:
    world = World()
    pace = world.pace()
    world.now += 3
    for _ in range(20):
        pace.wait(0.010)
    # 10 steps of the last tenth of a second take no time at all.
    assert round(world.now - 50, 9) == 3.100
    assert round(pace.lost_s, 9) == 2.9


def test_steps_longer_than_the_machine_can_keep_up_with_are_counted() -> None:
    world = World()
    pace = world.pace()
    for _ in range(50):
        world.now += 0.010
        pace.wait(0.004)
    assert round(world.now - 50, 9) == 0.500
    assert 0.15 < pace.lost_s < 0.35

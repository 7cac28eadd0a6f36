"""The step of a warm job, which repeats: the closed loop of power, heat and clocks on all stretches of it at once.

A step is cut into stretches of a few control periods, and all stretches are gone through side by side. Each then starts
from where the stretch before it ended, and all are gone through once more (parallel in time: Lions, Maday and Turinici
2001). Heat is linear, so its part of that start is exact, and a governor forgets within some turns. Clocks that heat
holds are searched; a brake needs `loop`.
"""

from collections.abc import Iterator

import numpy as np

from triplepoint.simulate.heat.clocks import ClockState, Governor, Reason, free_clocks
from triplepoint.simulate.heat.loop import AT_REST, Trace
from triplepoint.simulate.heat.machine import Machine, Profile
from triplepoint.simulate.heat.network import propagator
from triplepoint.simulate.power.gpu import Float

_STRETCH, _MOST_STRETCHES = 8, 128
"""Least control periods of a stretch, and highest number of stretches: beyond it they are longer."""
_SINGLE = 4 * _STRETCH
"""A step of fewer control periods is one stretch."""
_REMEMBERED, _LEAST_TURNS = 64, 3
"""Control periods that governors need to raise clocks again, which stretches are gone through for at most; and turns of
a step that goes on from the one before, one less than of any other."""
_SETTLED = 1e-3
"""They are left alone once a turn changes the mean power of no device by more, relative.

Clocks at a limit go on swinging, by 6e-4 a turn and device. On 20 layouts of Llama 3 70B on 512 H100 the step after
four turns is 7e-5 off the mean of turns 13 to 32, mean power 5e-5; after 8 or 32 turns they are as far off (RMS).
"""
_PASSES = 2
"""Times the heat of a step is followed from its mean: slow parts have not forgotten that after one."""


def num_periods(step_s: float, period_s: float) -> int:
    """Return how many control periods a step is cut into: of more than a few, whole stretches.

    Args:
        step_s: Length of the step. Unit: s.
        period_s: Control period. Unit: s.
    """
    number = max(round(step_s / period_s), 1)
    return number // _num_stretches(number) * _num_stretches(number)


def _num_stretches(number: int) -> int:
    """Return how many stretches some control periods are cut into."""
    return 1 if number < _SINGLE else min(number // _STRETCH, _MOST_STRETCHES)


_HELD_K, _MOST_HELD = 0.05, 40
"""How near a die that heat holds is brought to its highest operating temperature, and most searches for its clock."""
_MOST_MOVED = 30.0
"""Places by which a ceiling is moved at once."""
_GOLDEN = (5**0.5 - 1) / 2


class Periodic:
    """A step of a job by control period: arrays of shape (num_periods, num_nodes, num_devices)."""

    def __init__(self, machine: Machine, profile: Profile, step_s: float, ceiling: Float | None = None) -> None:
        """Prepare the arrays.

        Args:
            machine: The nodes; brakes are not heeded.
            profile: Of a step at the highest clocks, a bin for each control period.
            step_s: About the length of the step. Unit: s.
            ceiling: Places in the table of clocks to begin under, near which heat holds devices: a search from there
                goes on with heat and clocks of the trial before. None: those of the machine.
        """
        power, shape, number = machine.power, machine.shape, len(profile.duration_s)
        self._machine, self._table, self._period_s = machine, machine.table, step_s / number
        self._length = number // _num_stretches(number)
        rates = (profile.of_devices(rate, shape) for rate in profile.rates(power))
        self._traffic, self._work, self._awake, self._bound, self._streams = rates
        self._rests = self._awake < AT_REST
        self._can_rest = bool(self._rests.any())
        self._duration_s, self._scale = profile.duration_s, 1.0
        self._top = len(machine.table.mhz) - 1.0
        self._fixed, self._most_w = power.base.value + power.memory_idle.value, power.excursion_limit.value
        # Leakage over states, which stand above the inlet.
        self._leakage = power.leakage.value * machine.devices.leakage * np.exp(
            power.leakage_growth.value * (machine.inlet_c[:, None] - power.leakage_temperature.value)
        )  # fmt: skip
        self._hottest = machine.heat.limits.shutdown_temperature.value - machine.inlet_c[:, None]
        self._leakage_share = self._table.voltage_share**power.leakage_voltage_exponent.value
        self._clock_energy = self._table.energy_share * self._table.share
        self._governor = Governor(
            self._table, machine.heat.limits, machine.power.clock_rise.value,
            machine.braked, self._period_s,
        )  # fmt: skip
        one = propagator(machine.network, self._period_s)
        self._stay = one.repeated(self._length).both[:, :, : 3 * shape[1]]
        self._powers = [self._stay]
        while 2 ** len(self._powers) < number // self._length:
            self._powers.append(self._powers[-1] @ self._powers[-1])
        self._both = np.ascontiguousarray(one.both.swapaxes(1, 2))
        self._twin = machine.twin if (machine.twin != np.arange(shape[1])).any() else None
        self._power, self._warm, self._slowdown, self._wanted = (np.empty((number, *shape)) for _ in range(4))
        self._ceiling = machine.ceilings.copy() if ceiling is None else np.minimum(ceiling, machine.ceilings)
        self._is_near = ceiling is not None
        self._state: tuple[Float, ClockState] | None = None
        self._dither = (np.arange(number) * _GOLDEN % 1.0)[:, None, None]
        self._place, self._rate = np.empty((number, *shape), dtype=np.int64), np.empty(number)

    @property
    def ceiling(self) -> Float:
        """Place in the table of clocks that devices are held under; shape (num_nodes, num_devices)."""
        return self._ceiling

    def settle_held(self, start_w: Float, lasts_s: float | None = None) -> Trace:
        """Return the step with clocks under the ceilings that keep every die at its highest operating temperature.

        The driver's ceiling swings about one clock, which is searched: swings of a second say nothing of a job.
        A die that is too hot at its lowest clock stays so.

        Args:
            start_w: About the mean power of every device. Unit: W.
            lasts_s: As `settle`.
        """
        machine, top = self._machine, self._machine.ceilings
        limit_k = machine.heat.limits.max_temperature.value - machine.inlet_c[:, None]
        cooling = machine.cooled_by
        resistance = cooling.die_resistance.value * machine.devices.die
        resistance = resistance + cooling.sink_resistance.value * machine.devices.sink
        found = self.settle(start_w, lasts_s)
        for _ in range(_MOST_HELD):
            over_k = self._warm.max(axis=0) - limit_k
            is_free = (self._ceiling >= top) & (over_k <= 0.0)
            if (is_free | (np.abs(over_k) < _HELD_K) | ((self._ceiling <= 0.0) & (over_k > 0.0))).all():
                break
            mean_w, place = self._power.mean(axis=0), self._place.max(axis=0)
            a_place_w = (mean_w - self._fixed) * self._governor.growth[place]
            moved = np.clip(over_k / (resistance * a_place_w), -_MOST_MOVED, _MOST_MOVED)
            self._ceiling = np.clip(np.minimum(self._ceiling, place + 1.0) - moved, 0.0, top)
            found = self.settle(mean_w, lasts_s)
        return found

    def settle(self, start_w: Float, lasts_s: float | None = None) -> Trace:
        """Return the step.

        Args:
            start_w: About the mean power of every device. Unit: W.
            lasts_s: Length the step has, to which its profile is stretched; None: what comes out. Unit: s.
        """
        machine, rows = self._machine, len(self._duration_s) // self._length
        before, most = start_w, max(_LEAST_TURNS, -(-_REMEMBERED // self._length))
        if self._state is None:
            heat = np.repeat(machine.network.steady(start_w)[:, None], rows, axis=1)
            clocks = free_clocks(self._table, (rows, *machine.shape))
        else:
            (heat, clocks), most = self._state, _LEAST_TURNS
        for turn in range(1, most + 1):
            end = self._turn(heat, clocks)
            heat = self._starts(end - heat @ self._stay.swapaxes(1, 2))
            for name in ("wanted", "asked", "place"):
                setattr(clocks, name, np.roll(getattr(clocks, name), 1, axis=0))
            if lasts_s is not None:
                self._scale *= lasts_s / (self._scale * float((self._duration_s / self._rate).sum()))
            mean_w = self._power.mean(axis=0)
            if turn > _LEAST_TURNS and np.abs(mean_w / before - 1.0).max() < _SETTLED:
                break
            before = mean_w
        if self._is_near:
            self._state = heat, clocks
        return self._trace()

    def _turn(self, heat: Float, clocks: ClockState) -> Float:
        """Go through all stretches, and return the heat they end with; shape (num_nodes, num_stretches, num_states)."""
        num_states, num_devices = heat.shape[2], self._machine.shape[1]
        column = np.concatenate([heat, np.empty((*heat.shape[:2], num_devices))], axis=2)
        growth, place_is_free = self._machine.power.leakage_growth.value, bool((self._ceiling >= self._top).all())
        for now in self._periods():
            place = clocks.place
            if not place_is_free:
                # A ceiling between two clocks is the one for some of the time and the other for the rest.
                place = np.minimum(place, (self._ceiling + self._dither[now]).astype(np.int64))
            warm = np.ascontiguousarray(column[:, :, :num_devices].swapaxes(0, 1))
            if self._can_rest:
                place = np.where(self._rests[now], 0, place)
            # `take` is four times as fast as an index of arrays, and most of the time goes here.
            stretch, starved = self._table.stretch.take(place), self._table.starved.take(place)
            slowdown = 1.0 + self._bound[now] * stretch + self._streams[now] * starved
            rate = 1.0 / slowdown.reshape(len(slowdown), -1).max(axis=1)
            speed = (rate / self._scale)[:, None, None]
            # A device that would pass the temperature it turns itself off at gets no hotter in here.
            leakage = self._leakage * np.exp(growth * np.minimum(warm, self._hottest)) * self._leakage_share.take(place)
            movable = leakage + speed * self._work[now] * self._table.energy_share.take(place)
            movable += self._awake[now] * self._clock_energy.take(place)
            # Hardware lets no more through, within less than a control period.
            power = np.minimum(movable + speed * self._traffic[now] + self._fixed, self._most_w)
            self._power[now], self._warm[now], self._slowdown[now] = power, warm, slowdown
            self._wanted[now], self._place[now], self._rate[now] = clocks.wanted, place, rate
            column[:, :, num_states:] = power.swapaxes(0, 1)
            column[:, :, :num_states] = column @ self._both
            if self._twin is not None:
                # One limit holds for the package: each of its devices is given half of what it draws.
                power, movable = (0.5 * (of + of[:, :, self._twin]) for of in (power, movable))
            self._governor.steer(clocks, self._machine.limits_w - power, movable, warm, -np.inf)
        return column[:, :, :num_states]

    def _periods(self) -> Iterator[slice]:
        """Yield the first control period of all stretches, then the second, and so on."""
        return (slice(index, None, self._length) for index in range(self._length))

    def _starts(self, driven: Float) -> Float:
        """Return the heat that stretches start with, from what power adds in each; shape as that of `driven`."""
        heat = self._machine.network.steady(self._power.mean(axis=0))
        found = np.empty_like(driven)
        for _ in range(_PASSES):
            found[:, 0], found[:, 1:] = heat, driven[:, :-1]
            # Sums over all stretches before, in as many products as the number of stretches has binary digits.
            for place, power in enumerate(self._powers):
                step = 2**place
                found[:, step:] += found[:, :-step] @ power.swapaxes(1, 2)
            heat = (self._stay @ found[:, -1, :, None])[..., 0] + driven[:, -1]
        return found

    def _trace(self) -> Trace:
        none, number = np.zeros(self._place.shape, dtype=np.bool_), len(self._rate)
        free, top = float(len(self._table.mhz)), self._top
        # A clock that is locked is not throttled: only what is below it counts.
        most = self._machine.ceilings
        ceiling = np.broadcast_to(np.where(self._ceiling < most, self._ceiling, free), self._wanted.shape)
        wanted = np.where(self._wanted >= most, top, self._wanted)
        reasons = self._governor.reasons(wanted, ceiling, none, np.zeros(number, dtype=np.bool_))
        if self._can_rest:
            reasons = np.where(self._rests & (reasons == 0), int(Reason.IDLE), reasons)
        position_s = self._scale * np.cumsum(self._duration_s)
        return Trace(
            self._scale * float((self._duration_s / self._rate).mean()), self._power,
            self._warm + self._machine.inlet_c[:, None], self._table.mhz[self._place],
            reasons, self._slowdown, self._rate, position_s, repeats=True,
        )  # fmt: skip

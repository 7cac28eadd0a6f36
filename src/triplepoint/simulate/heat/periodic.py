"""Closed loop of a step in steady state, which repeats: all parts of the step are simulated side by side.

A step is cut into stretches of a few control periods, which are simulated in parallel. Each stretch then starts from
the end of the one before, and all are simulated again (parallel in time: Lions, Maday and Turinici 2001). Heat is
linear, so its part of the start is exact, and the governor forgets its start within a few iterations. Ceilings by
temperature are searched. A power brake needs `loop`.
"""

import numpy as np

from triplepoint.simulate.heat import _stretches
from triplepoint.simulate.heat.clocks import ClockState, Governor, Reason, free_clocks
from triplepoint.simulate.heat.loop import AT_REST, Trace, clock_effects, device_limits, numbers_of
from triplepoint.simulate.heat.machine import Machine, Profile
from triplepoint.simulate.heat.network import propagator
from triplepoint.simulate.power.gpu import Float

_MIN_LENGTH, _MAX_STRETCHES = 8, 128
"""Least control periods of a stretch, and most stretches of a step; stretches of long steps are longer."""
_MIN_CUT_PERIODS = 4 * _MIN_LENGTH
"""A step of fewer control periods is one stretch."""
_GOVERNOR_PERIODS, _MIN_ITERATIONS = 64, 3
"""Control periods that the governor needs to raise clocks again: iterations stop after as many periods. Iterations of a
step that continues from the one before; other steps have no fewer."""
_SETTLED = 1e-3
"""Iterations also stop once the mean power of no device changes by more, relative.

Clocks at a limit keep swinging, by 6e-4 per iteration and device. On 20 layouts of Llama 3 70B on 512 H100 the step
after four iterations differs by 7e-5 from the mean of iterations 13 to 32, and mean power by 5e-5; after 8 or 32
iterations the difference is as large (RMS).
"""
_TOLERANCE_K, _MAX_SEARCHES = 0.05, 40
"""Tolerance of the temperature of dies that heat throttles, and most iterations of the search for their ceilings."""
_MAX_CEILING_STEP = 30.0
"""Most clocks by which a ceiling is moved at once."""
_GOLDEN = (5**0.5 - 1) / 2
_AWAKE = 2
"""Place of the power of the clock tree in `Profile.rates`."""


def num_periods(step_s: float, period_s: float) -> int:
    """Return the number of control periods of a step: a multiple of its number of stretches.

    Args:
        step_s: Length of the step. Unit: s.
        period_s: Control period. Unit: s.
    """
    number = max(round(step_s / period_s), 1)
    return number // _num_stretches(number) * _num_stretches(number)


def _num_stretches(number: int) -> int:
    """Return the number of stretches of a step with `number` control periods."""
    return 1 if number < _MIN_CUT_PERIODS else min(number // _MIN_LENGTH, _MAX_STRETCHES)


class Periodic:
    """A step by control period in steady state; arrays of shape (num_periods, num_nodes, num_devices)."""

    def __init__(self, machine: Machine, profile: Profile, step_s: float, ceiling: Float | None = None) -> None:
        """Prepare the arrays.

        Args:
            machine: The nodes; power brakes are ignored.
            profile: Profile of a step at the highest clocks, with one bin per control period.
            step_s: Approximate length of the step. Unit: s.
            ceiling: Approximate clocks that the temperature limit allows, as an index with its fraction; shape
                (num_nodes, num_devices). Each iteration of the search then continues from heat and clocks of the
                iteration before. None: the highest clocks of the machine.
        """
        power, shape, number = machine.power, machine.shape, len(profile.duration_s)
        self._machine, self._table, self._period_s = machine, machine.table, step_s / number
        self._length = number // _num_stretches(number)
        self._rates = np.ascontiguousarray([profile.of_devices(rate, shape) for rate in profile.rates(power)])
        self._duration_s, self._scale = profile.duration_s, 1.0
        self._highest = len(machine.table.mhz) - 1.0
        self._fixed_w = power.base.value + power.memory_idle.value
        self._governor = Governor(
            self._table, machine.heat.limits, machine.power.clock_rise.value,
            machine.braked, self._period_s,
        )  # fmt: skip
        self._tables, self._values = clock_effects(self._table, power, self._governor), device_limits(machine)
        period = propagator(machine.network, self._period_s)
        stay = period.repeated(self._length).both[:, :, : 3 * shape[1]]
        self._stay = np.ascontiguousarray(stay.swapaxes(1, 2))
        self._propagator = np.ascontiguousarray(period.both.swapaxes(1, 2))
        self._record = np.empty((4, number, *shape))
        self._power_w, self._rise_k, self._slowdown, self._allowed = self._record
        self._index, self._rate = np.empty((number, *shape), dtype=np.int64), np.empty(number)
        self._ceiling = machine.ceilings.copy() if ceiling is None else np.minimum(ceiling, machine.ceilings)
        self._continues = ceiling is not None
        self._state: tuple[Float, ClockState] | None = None
        # A low-discrepancy sequence that rounds a ceiling with a fraction up for that fraction of the periods.
        self._dither = np.arange(float(number)) * _GOLDEN % 1.0

    @property
    def ceiling(self) -> Float:
        """Index of the clock that the temperature limit allows, with its fraction; shape (num_nodes, num_devices)."""
        return self._ceiling

    def settle_held(self, start_w: Float, fixed_s: float | None = None) -> Trace:
        """Return the step with ceilings that keep dies throttled by heat at their highest operating temperature.

        The driver's ceiling swings around one clock within seconds. The search finds that clock, because such swings
        do not matter for a job. A die that is too hot at its lowest clock stays too hot.

        Args:
            start_w: Approximate mean power of every device; shape (num_nodes, num_devices). Unit: W.
            fixed_s: As `settle`.
        """
        machine, highest = self._machine, self._machine.ceilings
        limit_k = machine.heat.limits.max_temperature.value - machine.inlet_c[:, None]
        cooling = machine.cooled_by
        resistance = cooling.die_resistance.value * machine.devices.die
        resistance = resistance + cooling.sink_resistance.value * machine.devices.sink
        trace = self.settle(start_w, fixed_s)
        for _ in range(_MAX_SEARCHES):
            over_k = self._rise_k.max(axis=0) - limit_k
            is_free = (self._ceiling >= highest) & (over_k <= 0.0)
            is_lowest = (self._ceiling <= 0.0) & (over_k > 0.0)
            if (is_free | (np.abs(over_k) < _TOLERANCE_K) | is_lowest).all():
                break
            mean_w, index = self._power_w.mean(axis=0), self._index.max(axis=0)
            per_clock_w = (mean_w - self._fixed_w) * self._governor.growth[index]
            change = np.clip(over_k / (resistance * per_clock_w), -_MAX_CEILING_STEP, _MAX_CEILING_STEP)
            self._ceiling = np.clip(np.minimum(self._ceiling, index + 1.0) - change, 0.0, highest)
            trace = self.settle(mean_w, fixed_s)
        return trace

    def settle(self, start_w: Float, fixed_s: float | None = None) -> Trace:
        """Return the step at the present ceilings.

        Args:
            start_w: Approximate mean power of every device; shape (num_nodes, num_devices). Unit: W.
            fixed_s: Length of the step, to which its profile is stretched. None: the length follows from the clocks.
                Unit: s.
        """
        machine, num_stretches = self._machine, len(self._duration_s) // self._length
        before_w, max_iterations = start_w, max(_MIN_ITERATIONS, -(-_GOVERNOR_PERIODS // self._length))
        if self._state is None:
            heat = np.repeat(machine.network.steady(start_w)[:, None], num_stretches, axis=1)
            clocks = free_clocks(self._table, (num_stretches, *machine.shape))
        else:
            (heat, clocks), max_iterations = self._state, _MIN_ITERATIONS
        for iteration in range(1, max_iterations + 1):
            end = self._simulate_stretches(heat, clocks)
            if fixed_s is not None:
                self._scale *= fixed_s / (self._scale * float((self._duration_s / self._rate).sum()))
            mean_w = self._power_w.mean(axis=0)
            is_settled = iteration > _MIN_ITERATIONS and np.abs(mean_w / before_w - 1.0).max() < _SETTLED
            is_last = is_settled or iteration == max_iterations
            if not is_last or self._continues:
                _stretches.chain(self._stay, machine.network.steady(mean_w), end, heat)
                # Each stretch takes over the clocks of the stretch before.
                for name in ("allowed", "requested", "index"):
                    values = getattr(clocks, name)
                    setattr(clocks, name, np.concatenate((values[-1:], values[:-1])))
            if is_last:
                break
            before_w = mean_w
        if self._continues:
            self._state = heat, clocks
        return self._trace()

    def _simulate_stretches(self, heat: Float, clocks: ClockState) -> Float:
        """Simulate all stretches once and record them.

        Args:
            heat: Heat at the start of each stretch; shape (num_nodes, num_stretches, num_states). Unit: K.
            clocks: Clocks at the start, of shape (num_stretches, num_nodes, num_devices); changed to those at the end.

        Returns:
            Heat at the end of each stretch, in the shape of `heat`.
        """
        end = np.array(heat, order="C")
        numbers = numbers_of(self._machine.power, self._governor, self._scale)
        _stretches.run(
            self._rates, self._dither, self._tables, np.ascontiguousarray([*self._values, self._ceiling]),
            self._machine.twin, self._propagator, np.array(numbers),
            self._record, self._index, self._rate, clocks.allowed, clocks.requested, clocks.index, end,
        )  # fmt: skip
        return end

    def _trace(self) -> Trace:
        """Return the recorded step."""
        is_slowed, number = np.zeros(self._index.shape, dtype=np.bool_), len(self._rate)
        no_ceiling = float(len(self._table.mhz))
        # A locked clock is not throttled: only clocks below it are.
        locked = self._machine.ceilings
        ceiling = np.broadcast_to(np.where(self._ceiling < locked, self._ceiling, no_ceiling), self._allowed.shape)
        allowed = np.where(self._allowed >= locked, self._highest, self._allowed)
        reasons = self._governor.reasons(allowed, ceiling, is_slowed, np.zeros(number, dtype=np.bool_))
        rests = self._rates[_AWAKE] < AT_REST
        reasons = np.where(rests & (reasons == 0), int(Reason.IDLE), reasons)
        position_s = self._scale * np.cumsum(self._duration_s)
        return Trace(
            self._scale * float((self._duration_s / self._rate).mean()), self._power_w,
            self._rise_k + self._machine.inlet_c[:, None], self._table.mhz[self._index],
            reasons, self._slowdown, self._rate, position_s, repeats=True,
        )  # fmt: skip

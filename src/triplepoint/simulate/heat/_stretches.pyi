"""The closed loop of power, heat and clocks, in stretches of a step and through time. Written in C, in `stretches/`."""

from triplepoint.simulate.heat.clocks import Bool
from triplepoint.simulate.power.gpu import Float, Int64

def chain(stay: Float, steady: Float, end: Float, start: Float, /) -> None:
    """Replace the heat at the start of each stretch of a periodic step by that which the stretches before leave.

    Arrays are contiguous, of floats of 64 bits.

    Args:
        stay: Heat after a stretch by heat before it, without power; shape (num_nodes, num_states, num_states), states
            before it first.
        steady: Heat under the mean power of the step; shape (num_nodes, num_states). Unit: K.
        end: Heat at the end of each stretch, then what power in it has added; shape (num_nodes, num_stretches,
            num_states). Unit: K.
        start: Heat at the start of each stretch, of which `end` is the result; same shape. Unit: K.

    Raises:
        ValueError: If the sizes do not fit each other.
    """

def follow(
    edges_s: Float,
    integral: Float,
    tables: Float,
    values: Float,
    twin: Int64,
    propagator: Float,
    numbers: Float,
    zones: Float,
    slowdown_index: Int64,
    record: Float,
    is_slowed: Bool,
    index: Int64,
    rate: Float,
    position_s: Float,
    clock_allowed: Float,
    clock_requested: Float,
    clock: Int64,
    clock_ceiling: Float,
    clock_slowdown_left_s: Float,
    heat: Float,
    job: Float,
    /,
) -> None:
    """Simulate control periods one after the other, and record them; other threads run meanwhile.

    Arrays are contiguous, of floats of 64 bits where nothing else is said. Those from `record` on are changed.

    Args:
        edges_s: Edges of the bins of the profile; shape (num_bins + 1,). Unit: s.
        integral: See `Profile.integral`; shape (num_bins + 1, 5, num_nodes, num_devices).
        tables: As `run`.
        values: The first three of `run`, air temperature at the inlet in degC, and 1 under a power brake, otherwise 0;
            shape (5, num_nodes, num_devices).
        twin: As `run`.
        propagator: As `run`.
        numbers: Those of `run`, control period and length of the step in s, and 0 if clocks stay, otherwise 1; shape
            (9,).
        zones: `Governor.zones`.
        slowdown_index: `Governor.slowdown_index`.
        record: Power in W, rise over the inlet at the end of the period in K, slowdown, index that the power limit
            allows, and that the temperature limit allows; shape (5, num_periods, num_nodes, num_devices).
        is_slowed: Whether the hardware slowdown is active; booleans of shape (num_periods, num_nodes, num_devices).
        index: Index of the clock; integers of the same shape.
        rate: Speed of each period; shape (num_periods,).
        position_s: Position in the job at the end of each period; shape (num_periods,). Unit: s.
        clock_allowed: `ClockState.allowed`; shape (num_nodes, num_devices), as the next four.
        clock_requested: `ClockState.requested`.
        clock: `ClockState.index`; integers.
        clock_ceiling: `ClockState.ceiling`.
        clock_slowdown_left_s: `ClockState.slowdown_left_s`.
        heat: Heat at the start, then at the end; shape (num_nodes, num_states). Unit: K.
        job: Position in s and speed of the job; shape (2,).

    Raises:
        ValueError: If the sizes do not fit each other, or an index is out of range.
    """

def run(
    rates: Float,
    dither: Float,
    tables: Float,
    values: Float,
    twin: Int64,
    propagator: Float,
    numbers: Float,
    record: Float,
    index: Int64,
    rate: Float,
    clock_allowed: Float,
    clock_requested: Float,
    clock: Int64,
    heat: Float,
    /,
) -> None:
    """Simulate all stretches of a step once, and record them; other threads run meanwhile.

    Arrays are contiguous, of floats of 64 bits where nothing else is said. Those from `record` on are changed.

    Args:
        rates: See `Profile.rates`; shape (5, num_periods, num_nodes, num_devices).
        dither: Fraction that is added to the ceiling of a period before it is rounded down; shape (num_periods,).
        tables: Effects of each clock: `stretch` and `starved` of `Clocks`, share of leakage, `energy_share`, power of
            the clock tree, growth of power to the next clock; shape (6, num_clocks).
        values: Power limit in W, leakage at the inlet temperature in W, rise over the inlet at the shutdown in K, and
            index of the ceiling; shape (4, num_nodes, num_devices).
        twin: The other device of the package of every device, or itself; integers of shape (num_devices,).
        propagator: Heat after a period by heat before it and by power; shape (num_nodes, num_states + num_devices,
            num_states).
        numbers: Growth of leakage in 1/K, power that does not depend on anything and highest power in W, length of the
            step over that of its profile, indices by which a clock rises in a period, and power of the clock tree
            below which a device rests in W; shape (6,).
        record: Power in W, rise over the inlet in K, slowdown, and index that the power limit allows; shape (4,
            num_periods, num_nodes, num_devices).
        index: Index of the clock; integers of shape (num_periods, num_nodes, num_devices).
        rate: Speed of each period; shape (num_periods,).
        clock_allowed: `ClockState.allowed` at the start of each stretch, then at its end; shape (num_stretches,
            num_nodes, num_devices), as the next two.
        clock_requested: `ClockState.requested`.
        clock: `ClockState.index`; integers.
        heat: Heat at the start of each stretch, then at its end; shape (num_nodes, num_stretches, num_states). Unit: K.

    Raises:
        ValueError: If the sizes do not fit each other, or an index is out of range.
    """

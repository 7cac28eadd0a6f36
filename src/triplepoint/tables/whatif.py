"""Table `whatif`: effect of single factors on a simulated point, or on the difference of two points."""

from triplepoint.tables.schema import Table, signed, text

WHATIF = Table(
    "whatif",
    "one row per (comparison, model, case, part, factor, quantity)",
    (
        text("comparison", "Name of the comparison in `config/whatif`; null for points given by hand.", True),
        text("model", "Model of the case."),
        text("case", "Run id of the point; for a difference both, `A to B`."),
        text("cluster", "Cluster of the point; for a difference both, `A to B`."),
        text("side", "from, to, or difference; null for a single point.", True),
        text("part", "factor; interaction: not explained by single factors; rest: left with all changed; whole."),
        text("factor", "Changed factor, as in `triplepoint whatif --help`; null for other parts.", True),
        text("value", "New value of the factor; null for other parts.", True),
        text("label", "Factor or part as in figures."),
        text("quantity", "Quantity of a step that the numbers are about."),
        text("unit", "Unit of the numbers; changes of degC are K, cost is in the currency of the prices."),
        signed("base", "The quantity without the change; for a difference, of the first point."),
        signed(
            "changed", "The quantity with the factor changed (whole: all factors); for a difference, of the second."
        ),
        signed("effect", "`changed` less `base`; for a difference, the part of it that is due to the factor."),
        signed("effect_lo", "Lower end of the 90 % interval of the effect; errors common to both sides cancel."),
        signed("effect_hi", "Upper end of that interval."),
        signed("share", "Effect over base; null for temperatures."),
        signed("share_lo", "Lower end of the 90 % interval of the share; errors common to both numbers cancel."),
        signed("share_hi", "Upper end of that interval."),
        signed("shapley", "Shapley value: mean over all orders of changing factors; null where not computed."),
        signed("steps_per_mtoken", "Steps per million tokens; energy and cost times it are those of a million tokens."),
        signed(
            "steps_per_day", "Steps per day without the change; energy and cost times it are those of a day's work."
        ),
        text("prices", "Prices used for cost; null without any.", True),
        text("note", "Setting chosen together with the factor, such as recomputation; null for none.", True),
        signed("published_sign", "1 if published to rise from first to second point, -1 to fall; null otherwise."),
        text("published", "That publication; null where none is known.", True),
        text("stack", "Simulated software; for a difference both, `A to B`."),
        text("git_commit", "Commit of the project that simulated; null if unknown.", True),
        text("origin", "simulated."),
    ),
    null="The row has no such number: see the column.",
)

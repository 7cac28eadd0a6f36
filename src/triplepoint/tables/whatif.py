"""Table `whatif`: what changing one factor at a time does to a simulated point, or to the difference of two."""

from triplepoint.tables.schema import Table, signed, text

WHATIF = Table(
    "whatif",
    "one row per (comparison, model, case, part, factor, quantity)",
    (
        text("comparison", "Name of the comparison in `config/whatif`; null where points were named by hand.", True),
        text("model", "Model of the case."),
        text("case", "Run id of the point; of a difference both, `A to B`."),
        text("cluster", "Cluster of the point; of a difference both, `A to B`."),
        text("side", "from, to, or difference; null where a point stands alone.", True),
        text("part", "factor; interaction: what single factors leave unexplained; rest: with all changed; whole."),
        text("factor", "Factor that is changed, as `triplepoint whatif --help` names it; null of other parts.", True),
        text("value", "What it is changed to; null of other parts.", True),
        text("label", "Factor or part as figures write it."),
        text("quantity", "Quantity that changes, of a step."),
        text("unit", "Unit of the numbers; changes of degC are K, and cost is in the currency of the prices."),
        signed("base", "The quantity as it is; of a difference that of the first point."),
        signed("changed", "With the factor, or of the whole all of them, changed; of a difference that of the second."),
        signed("effect", "Change alone: changed less base; of a difference the part of it that is due to the factor."),
        signed("effect_lo", "Lower end of its 90 % interval; what both sides have in common cancels."),
        signed("effect_hi", "Upper end."),
        signed("share", "The change over the base; null of temperatures."),
        signed("share_lo", "Lower end of its 90 % interval: what moves the change and the base alike cancels."),
        signed("share_hi", "Upper end."),
        signed("shapley", "Shapley value: mean over all orders of changing factors; null where not computed."),
        text("note", "What was chosen with the factor, such as recomputation; null where nothing was.", True),
        signed("published_sign", "1 where it is published to rise from first to second, -1 to fall; null otherwise."),
        text("published", "That claim and where it is from; null where none is known.", True),
        text("stack", "Software that is simulated; of a difference both, `A to B`."),
        text("git_commit", "Commit of the project that simulated; null if unknown.", True),
        text("origin", "simulated."),
    ),
    null="The row has no such number: see the column.",
)

"""Tables `claims` and `published`: published or separately measured numbers alongside the results."""

from triplepoint.tables.schema import Column, Table, count, signed, text
from triplepoint.tables.traces import RUN

CLAIMS = Table(
    "claims",
    "one row per (claim, point it is about)",
    (
        text("claim", "Name of the claim in `config/published/claims.yaml`."),
        text("figure", "Figure or section of the publication."),
        text("kind", "value, trend, sign, order, fits, finding or unknown: see docs/claims.md."),
        text("says", "The claim in one sentence."),
        text("point", "Points that this row is about; null where a claim is about none.", True),
        text("quantity", "Column of `points`, or a quantity of docs/claims.md; null where there is none.", True),
        text("unit", "Unit of the numbers; 1 for ratios. For kind `fits` 1 is yes and 0 is no."),
        signed("published", "Published number; for a trend its change, for a sign 1 (rises) or -1 (falls)."),
        signed("published_lo", "Lower end of the stated range, or of the reading error of a plot."),
        signed("published_hi", "Upper end of that range."),
        signed("ours", "Number from the results; for a trend or sign the change, for an order the rank correlation."),
        signed("ours_lo", "Lower end of its uncertainty interval; equal to `ours` if the interval is not known."),
        signed("ours_hi", "Upper end of that interval."),
        signed("difference", "`ours` less `published`; null where one of them has no size."),
        text("verdict", "agrees, differs or cannot tell; finding where a study contradicts itself."),
        text("reason", "Why it differs or cannot be told, or the numbers of a finding; null where it agrees.", True),
        text("fitted", "Simulator constants that were fitted to this figure; null where none were.", True),
        text("origin", "Origin of `ours`: measured or simulated; null without a number.", True),
        Column("runs", "names", "", "Runs that `ours` is from."),
    ),
    null="The claim has no such number, or the results do not.",
)

PUBLISHED = Table(
    "published",
    "one row per (run, quantity) with a number in a published figure, or per (run, quantity, node, slot)",
    (
        RUN,
        text("quantity", "Column of `points`, for single GPUs of `gpus`, or a quantity of docs/claims.md."),
        text("unit", "Unit of the numbers."),
        count("node", "Node within the run, from 0; null where the number is of the whole run.", True),
        count("slot", "Physical slot of the GPU; null as above.", True),
        signed("published", "Published number."),
        signed("published_lo", "Lower end of what could be read off."),
        signed("published_hi", "Upper end of it."),
        text("source", "Figure that it is from."),
        text("claim", "Name of the claim in `config/published/claims.yaml`."),
    ),
    null="The number is of the whole run.",
)

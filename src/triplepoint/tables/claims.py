"""Table `claims`: what is published, or measured elsewhere, beside the results."""

from triplepoint.tables.schema import Column, Table, count, signed, text
from triplepoint.tables.traces import RUN

CLAIMS = Table(
    "claims",
    "one row per (claim, point it speaks of)",
    (
        text("claim", "Name of the claim in `config/published/claims.yaml`."),
        text("figure", "Figure or section that it is from."),
        text("kind", "value, trend, sign, order, fits, finding or unknown: see docs/claims.md."),
        text("says", "The claim in one sentence."),
        text("point", "Points that this row is about; null where a claim is about none.", True),
        text("quantity", "Column of `points`, or a quantity of docs/claims.md; null where there is none.", True),
        text("unit", "Unit of the numbers; 1 for ratios, and of `fits` for yes (1) and no (0)."),
        signed("published", "Published number: of a trend its change, of a sign 1 for up and -1 for down."),
        signed("published_lo", "Lower end of what could be read off or is stated."),
        signed("published_hi", "Upper end of it."),
        signed("ours", "The same of the results: of a trend or sign the change, of an order the rank correlation."),
        signed("ours_lo", "Lower end of what it is known to; that of `ours` where nothing is known of it."),
        signed("ours_hi", "Upper end of it."),
        signed("difference", "Ours less published; null where either has no size."),
        text("verdict", "agrees, differs or cannot tell; finding where a study contradicts itself."),
        text("reason", "Why it differs or cannot be told, or the numbers of a finding; null where it agrees.", True),
        text("fitted", "Constants of the simulator that were set by this figure; null where none were.", True),
        text("origin", "Whether our number is measured or simulated; null where there is none.", True),
        Column("runs", "names", "", "Runs that our number is from."),
    ),
    null="The claim has no such number, or the results do not.",
)

PUBLISHED = Table(
    "published",
    "one row per (run, quantity) a published figure has a number of, or per (run, quantity, node, slot)",
    (
        RUN,
        text("quantity", "Column of `points`, of single GPUs of `gpus`, or a quantity of docs/claims.md."),
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

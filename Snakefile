# From a study in YAML to figures and a report:
#   plan -> launch or simulate -> telemetry, parse -> trace -> aggregate -> claims, whatif, project, figure -> report
# One rule per stage, each in rules/<stage>.smk, each calling `triplepoint <stage>`.
from snakemake.utils import min_version

min_version("9.0")


include: "rules/common.smk"
include: "rules/plan.smk"
include: "rules/launch.smk"
include: "rules/simulate.smk"
include: "rules/telemetry.smk"
include: "rules/parse.smk"
include: "rules/trace.smk"
include: "rules/aggregate.smk"
include: "rules/claims.smk"
include: "rules/whatif.smk"
include: "rules/project.smk"
include: "rules/figure.smk"
include: "rules/report.smk"


rule all:
    default_target: True
    input:
        # No files of runs: ten files of each of a thousand runs would take Snakemake seconds. Tables depend on them, and
        # STUDY.outdated_files() names the tables of runs whose files are missing.
        STUDY.table_files,
        STUDY.wanted_claim_tables,
        expand(
            "figs/{figure}.{format}",
            figure=STUDY.figures,
            format=["pdf", "svg", "png", "csv"],
        ),
        f"{STUDY.report_name}.html",
    localrule: True

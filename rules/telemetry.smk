# Converts the recordings of all nodes of a run to one clock, and marks steps and gaps.
rule telemetry:
    input:
        manifest="results/runs/{run}/raw/manifest.json",
    output:
        "results/runs/{run}/telemetry.parquet",
    log:
        "logs/telemetry/{run}.log",
    conda:
        "../envs/analysis.yaml"
    params:
        code=STUDY.code_digest("telemetry"),
    shell:
        "triplepoint telemetry {wildcards.run} 2> {log}"

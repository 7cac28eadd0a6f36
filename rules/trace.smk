# Joins the ranks of a run: clocks, waits between ranks, the critical path, and a timeline with power and temperature. `parse`
# parses the traces, or this rule itself if they are few and small.
rule trace:
    input:
        parts=lambda wildcards: expand(
            "results/runs/{run}/ranks/{part}",
            run=wildcards.run,
            part=STUDY.parts(wildcards.run),
        ),
        manifest="results/runs/{run}/raw/manifest.json",
        telemetry="results/runs/{run}/telemetry.parquet",
        rules=STUDY.trace_rules,
    output:
        expand(
            "results/runs/{{run}}/{product}",
            product=STUDY.trace_products,
        ),
    log:
        "logs/trace/{run}.log",
    conda:
        "../envs/analysis.yaml"
    params:
        code=STUDY.code_digest("trace"),
        options=lambda wildcards: STUDY.trace_options(wildcards.run),
    shell:
        "triplepoint trace {input.parts} --run {wildcards.run} {params.options} 2> {log}"

# Joins the parsed ranks of a run: clocks, who waited for whom, the critical path, one timeline beside power and heat.
rule trace:
    input:
        parts=lambda wildcards: expand(
            "results/runs/{run}/ranks/{part}",
            run=wildcards.run,
            part=STUDY.parts(wildcards.run),
        ),
        manifest="results/runs/{run}/raw/manifest.json",
        telemetry="results/runs/{run}/telemetry.parquet",
        code=STUDY.code("trace"),
    output:
        expand(
            "results/runs/{{run}}/{product}",
            product=STUDY.trace_products,
        ),
    log:
        "logs/trace/{run}.log",
    benchmark:
        "logs/benchmarks/trace/{run}.tsv"
    conda:
        "../envs/analysis.yaml"
    shell:
        "triplepoint trace {input.parts} --run {wildcards.run} 2> {log}"

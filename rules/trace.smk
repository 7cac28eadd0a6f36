# Parses the traces of a run: kernels, intervals, timeline.
rule trace:
    input:
        manifest="results/runs/{run}/raw/manifest.json",
        code=STUDY.code("trace"),
    output:
        kernels="results/runs/{run}/kernels.parquet",
        intervals="results/runs/{run}/intervals.parquet",
        timeline="results/runs/{run}/timeline.parquet",
    log:
        "logs/trace/{run}.log",
    benchmark:
        "logs/benchmarks/trace/{run}.tsv"
    conda:
        "../envs/analysis.yaml"
    shell:
        "triplepoint trace --run {wildcards.run} 2> {log}"

# Trains one run. It costs GPU hours, so only a changed point starts it again (params.digest): point.json is ancient(),
# its result is update()d, never removed first, and `triplepoint launch` keeps a result of the very same point.
# It takes all cores: nothing else may run beside a measurement.
rule launch:
    input:
        point=ancient("results/runs/{run}/point.json"),
    output:
        manifest=update("results/runs/{run}/raw/manifest.json"),
    log:
        "logs/launch/{run}.log",
    benchmark:
        "logs/benchmarks/launch/{run}.tsv"
    conda:
        "../envs/analysis.yaml"
    threads: workflow.cores
    params:
        digest=lambda wildcards: STUDY.point_digest(wildcards.run),
    shell:
        "triplepoint launch {wildcards.run} 2>&1 | tee {log}"

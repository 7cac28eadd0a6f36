# Trains one run. It costs GPU hours, so only a changed point starts it again: STUDY.point() is ancient() unless the result
# there is of another point, the result is update()d, never removed first, and `triplepoint launch` keeps one of the very
# same point. It takes all cores: nothing else may run beside a measurement.
rule launch:
    input:
        point=lambda wildcards: STUDY.point(wildcards.run, ancient),
    output:
        manifest=update("results/runs/{run}/raw/manifest.json"),
    log:
        "logs/launch/{run}.log",
    benchmark:
        "logs/benchmarks/launch/{run}.tsv"
    wildcard_constraints:
        run=STUDY.launched_pattern,
    conda:
        "../envs/analysis.yaml"
    threads: workflow.cores
    shell:
        "triplepoint launch {wildcards.run} 2>&1 | tee {log}"

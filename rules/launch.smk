# Trains one run. It costs GPU hours, so only a changed point starts it again: STUDY.point() is ancient() unless the result
# there is of another point, the result is update()d, never removed first, and `triplepoint launch` keeps one of the very
# same point. On this machine it takes all cores: nothing else may run beside a measurement. On a cluster it waits here for a
# job of its own, one of as many as there are nodes for; what is worth another try it tries itself, by outcome. No `benchmark`:
# Snakemake would walk through the memory of every rank twice a second, while steps are measured.
rule launch:
    input:
        point=lambda wildcards: STUDY.point(wildcards.run, ancient),
    output:
        manifest=update("results/runs/{run}/raw/manifest.json"),
    log:
        "logs/launch/{run}.log",
    wildcard_constraints:
        run=STUDY.launched_pattern,
    retries: 0
    localrule: True
    conda:
        "../envs/analysis.yaml"
    threads: workflow.cores
    resources:
        gang_nodes=lambda wildcards: STUDY.num_nodes(wildcards.run),
    shell:
        "triplepoint launch {wildcards.run} 2>&1 | tee {log}"

# Trains one run. It costs GPU hours, so nothing starts it again: it has no inputs, since a changed point is another run,
# the result is update()d, never removed first, and `triplepoint launch` keeps a result that is there. On this machine it takes
# all cores: nothing else may run beside a measurement. On a cluster it waits here for a job of its own, one of as many as there
# are nodes for; what is worth another try it tries itself, by outcome. No `benchmark`: Snakemake would walk through the memory
# of every rank twice a second, while steps are measured. It writes its log itself, without a pipe that could end it.
rule launch:
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
        "triplepoint launch {wildcards.run} --log {log}"

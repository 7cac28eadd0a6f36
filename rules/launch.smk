# Trains one run. A launch costs GPU hours, so it is never repeated without need. It has no inputs, since a changed point is
# another run. Its output is marked update(), so Snakemake does not remove it first, and `triplepoint launch` keeps an existing
# result. On the local machine it takes all cores, so that nothing else runs during a measurement. On a cluster the rule waits
# for a job of its own; as many run at once as there are nodes. `triplepoint launch` decides by outcome whether to try again.
# There is no `benchmark`, since Snakemake would read the memory of every rank twice a second while steps are measured. The
# command writes its log itself, because a closed pipe could end it.
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

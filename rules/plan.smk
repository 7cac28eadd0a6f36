# Expands the selected studies to points; rewrites point.json only where its content changes.
rule plan:
    output:
        plan="results/plan.json",
        points=update(expand("results/runs/{run}/point.json", run=STUDY.runs)),
    log:
        "logs/plan.log",
    benchmark:
        "logs/benchmarks/plan.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        digest=STUDY.digest,
        selection=STUDY.arguments,
    shell:
        "triplepoint plan {params.selection} --write 2> {log}"

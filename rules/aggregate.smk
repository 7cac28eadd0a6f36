# Joins all runs of the plan into tables; refuses incomplete ones.
rule aggregate:
    input:
        runs=expand(
            "results/runs/{run}/{product}", run=STUDY.runs, product=STUDY.aggregated
        ),
        gpus=STUDY.gpu_files,
        claims=STUDY.claim_files,
        sensors=STUDY.sensor_files,
    output:
        STUDY.table_files,
    log:
        "logs/aggregate.log",
    conda:
        "../envs/analysis.yaml"
    threads: 4
    params:
        plan=STUDY.digest,
        code=STUDY.code("aggregate"),
        machines=STUDY.machines,
    shell:
        "triplepoint aggregate --plan {params.plan} --jobs {threads} 2> {log}"

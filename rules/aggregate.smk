# Joins all runs of the plan into tables; refuses incomplete ones.
rule aggregate:
    input:
        plan="results/plan.json",
        runs=expand(
            "results/runs/{run}/{product}", run=STUDY.runs, product=STUDY.aggregated
        ),
        gpus=STUDY.gpu_files,
        sensors=STUDY.sensor_files,
    output:
        expand(
            "results/tables/{table}.{format}",
            table=STUDY.tables,
            format=["parquet", "csv"],
        ),
    log:
        "logs/aggregate.log",
    benchmark:
        "logs/benchmarks/aggregate.tsv"
    conda:
        "../envs/analysis.yaml"
    threads: 4
    params:
        code=STUDY.code("aggregate"),
        machines=STUDY.machines,
    shell:
        "triplepoint aggregate --jobs {threads} 2> {log}"

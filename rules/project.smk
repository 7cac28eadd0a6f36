# Projects a job to more GPUs. It needs no run, takes seconds, and runs again when its inputs or code change.
rule project:
    input:
        "config/projection/{projection}.yaml",
    output:
        "results/projection/{projection}.parquet",
    log:
        "logs/project/{projection}.log",
    conda:
        "../envs/analysis.yaml"
    threads: 2
    params:
        machines=STUDY.machines_digest,
        compared=STUDY.studies_digest,
        code=STUDY.code_digest("project"),
    shell:
        "triplepoint project {input} --out {output} > {log} 2>&1"

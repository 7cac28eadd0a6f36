# Joins the runs of one study into its tables, and fails if a run is incomplete. Tables of other studies are not touched.
rule aggregate:
    input:
        runs=lambda wildcards: STUDY.aggregate_input_files(wildcards.study),
        gpus=lambda wildcards: STUDY.gpu_files(wildcards.study),
        sensors=STUDY.sensor_files,
        published=STUDY.claim_files,
    output:
        expand("results/tables/{{study}}/{table}", table=STUDY.table_names),
    log:
        "logs/aggregate/{study}.log",
    conda:
        "../envs/analysis.yaml"
    threads: 4
    params:
        plan=lambda wildcards: STUDY.plan_digest(wildcards.study),
        code=STUDY.code_digest("aggregate"),
        machines=STUDY.machines_digest,
    shell:
        "triplepoint aggregate {wildcards.study} --plan {params.plan} --jobs {threads} 2> {log}"

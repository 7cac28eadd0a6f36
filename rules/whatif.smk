# Simulates a comparison with one factor changed at a time. It needs no run, takes a minute, and runs again when its inputs or
# code change.
rule whatif:
    input:
        "config/whatif/{comparison}.yaml",
    output:
        "results/whatif/{comparison}.parquet",
    log:
        "logs/whatif/{comparison}.log",
    conda:
        "../envs/analysis.yaml"
    threads: 4
    params:
        machines=STUDY.machines_digest,
        compared=STUDY.studies_digest,
        code=STUDY.code_digest("whatif"),
    shell:
        "triplepoint whatif {input} --out {output} 2> {log}"

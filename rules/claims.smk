# Compares published claims with the tables of all selected studies.
rule claims:
    input:
        tables=STUDY.tables_behind(["points", "gpus", "kernels"]),
        claims=STUDY.claim_files,
    output:
        STUDY.claim_tables,
    log:
        "logs/claims.log",
    conda:
        "../envs/analysis.yaml"
    params:
        studies=" ".join(STUDY.studies),
        code=STUDY.code_digest("claims"),
    shell:
        "triplepoint claims {params.studies} 2> {log}"

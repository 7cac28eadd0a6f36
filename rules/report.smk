# One self-contained page: the study, its machine, the figures with captions, tables, provenance.
rule report:
    input:
        figures=expand("figs/{figure}.png", figure=STUDY.figures),
        captions=expand("workflow/report/{figure}.rst", figure=STUDY.figures),
        tables=expand("results/tables/{table}.parquet", table=STUDY.tables),
    output:
        "report.html",
    log:
        "logs/report.log",
    conda:
        "../envs/analysis.yaml"
    params:
        code=STUDY.code("report"),
    shell:
        "triplepoint report 2> {log}"

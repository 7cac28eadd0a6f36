# One self-contained page: the studies, their machines, the figures with captions, tables, provenance.
rule report:
    input:
        figures=expand("figs/{figure}.svg", figure=STUDY.figures),
        captions=STUDY.caption_files,
        tables=STUDY.tables_behind([*STUDY.tables, *STUDY.over_all]),
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

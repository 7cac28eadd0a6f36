# A self-contained front page with findings, figures and a table of runs, and a page for each run in report/.
rule report:
    input:
        figures=expand("figs/{figure}.svg", figure=STUDY.figures),
        captions=STUDY.caption_files,
        tables=STUDY.tables_behind([*STUDY.tables, *STUDY.over_all]),
    output:
        page="report.html",
        pages=directory("report"),
    log:
        "logs/report.log",
    conda:
        "../envs/analysis.yaml"
    threads: 4
    params:
        code=STUDY.code("report"),
    shell:
        "triplepoint report --jobs {threads} 2> {log}"

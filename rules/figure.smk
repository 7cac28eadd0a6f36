# Draws one figure from the tables, and writes the numbers it plots beside it.
rule figure:
    input:
        tables=expand("results/tables/{table}.parquet", table=STUDY.tables),
    output:
        pdf=report(
            "figs/{figure}.pdf",
            caption="../workflow/report/figure.rst",
            category="Figures",
            labels={"figure": "{figure}", "format": "PDF"},
        ),
        png="figs/{figure}.png",
        csv="figs/{figure}.csv",
    log:
        "logs/figure/{figure}.log",
    conda:
        "../envs/analysis.yaml"
    params:
        code=lambda wildcards: STUDY.figure_code(wildcards.figure),
        # For figure.rst: Snakemake fills no wildcards in the path of a caption.
        caption=lambda wildcards: triplepoint_workflow.figures.caption(wildcards.figure),
    shell:
        "triplepoint figure {wildcards.figure} 2> {log}"

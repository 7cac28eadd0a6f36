# Draws one figure, and writes the numbers it plots. STUDY/NAME draws one study, NAME the studies of the catalogue.
rule figure:
    input:
        tables=lambda wildcards: STUDY.figure_tables(wildcards.figure),
    output:
        pdf=report(
            "figs/{figure}.pdf",
            caption="../workflow/report/figure.rst",
            category=lambda wildcards: STUDY.question(wildcards.figure),
            labels={"figure": "{figure}", "format": "PDF"},
        ),
        svg="figs/{figure}.svg",
        png="figs/{figure}.png",
        csv="figs/{figure}.csv",
    log:
        "logs/figure/{figure}.log",
    conda:
        "../envs/analysis.yaml"
    params:
        code=lambda wildcards: STUDY.figure_code_digest(wildcards.figure),
        # Used by figure.rst, since Snakemake does not allow wildcards in the path of a caption.
        caption=lambda wildcards: STUDY.caption(wildcards.figure),
    shell:
        "triplepoint figure {wildcards.figure} 2> {log}"

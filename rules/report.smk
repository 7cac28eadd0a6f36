# Writes a self-contained front page with findings, figures and a table of runs, and a page for each run in report/. A report
# of named studies has another file name, so that the report of all studies is not touched.
rule report:
    input:
        figures=expand("figs/{figure}.svg", figure=STUDY.figures),
        captions=STUDY.caption_files,
        tables=STUDY.report_tables,
        claims=STUDY.claim_files,
    output:
        page=f"{STUDY.report_name}.html",
        pages=directory(STUDY.report_name),
    log:
        f"logs/{STUDY.report_name}.log",
    conda:
        "../envs/analysis.yaml"
    threads: 4
    params:
        code=STUDY.code_digest("report"),
        arguments=STUDY.report_arguments,
    shell:
        "triplepoint report {params.arguments} --jobs {threads} 2> {log}"

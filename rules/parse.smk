# Parses the traces of some ranks of a run in parallel. Only `trace` reads the output.
rule parse:
    input:
        manifest="results/runs/{run}/raw/manifest.json",
        rules=STUDY.trace_rules,
    output:
        directory("results/runs/{run}/ranks/{part}"),
    log:
        "logs/parse/{run}/{part}.log",
    conda:
        "../envs/analysis.yaml"
    threads: lambda wildcards: STUDY.num_traces(wildcards.run, wildcards.part)
    resources:
        # 260 MB were measured for each process, whatever the size of its trace; a further process waits for the others.
        mem_mb=lambda wildcards, threads, attempt: 300 * (threads + 1) * attempt,
    params:
        rules=STUDY.trace_arguments,
        code=STUDY.code_digest("parse"),
    shell:
        "triplepoint parse {wildcards.run} {wildcards.part} --jobs {threads} {params.rules} 2> {log}"

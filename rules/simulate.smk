# Simulates one run in place of a launch. It takes a second, so unlike a launch it runs again when its inputs or code change.
rule simulate:
    output:
        manifest="results/runs/{run}/raw/manifest.json",
    log:
        "logs/simulate/{run}.log",
    wildcard_constraints:
        run=STUDY.simulated_pattern,
    conda:
        "../envs/analysis.yaml"
    params:
        machines=STUDY.machines_digest,
        code=STUDY.code_digest("simulate"),
    shell:
        "triplepoint simulate {wildcards.run} 2> {log}"

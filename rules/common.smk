# Binds the configuration to the rules: which points there are, and which source files a stage depends on.
from triplepoint import workflow as triplepoint_workflow


configfile: "config/config.yaml"


STUDY = triplepoint_workflow.bind(config, workflow.basedir)


wildcard_constraints:
    run=STUDY.run_pattern,
    part=r"\d+-\d+",
    figure="|".join(STUDY.figures),

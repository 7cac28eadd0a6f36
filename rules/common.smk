# Binds the configuration to the rules: which points there are, and which source files a stage depends on.
from triplepoint import workflow as triplepoint_workflow, workflow_site


configfile: "config/config.yaml"


STUDY = triplepoint_workflow.bind(config, workflow.basedir)
workflow_site.apply_site(workflow)
workflow_site.pass_interrupts_on()


wildcard_constraints:
    run=STUDY.run_pattern,
    part=r"\d+-\d+",
    figure="|".join(STUDY.figures),

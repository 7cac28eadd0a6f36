# Binds the configuration to the rules: which points there are, and which source files a stage depends on.
from triplepoint import workflow as triplepoint_workflow, workflow_site


configfile: "config/config.yaml"


workflow_site.collect_rarely()
STUDY = triplepoint_workflow.bind(config, workflow.basedir)
workflow_site.apply_site(workflow)
workflow_site.pass_interrupts_on()


wildcard_constraints:
    run=triplepoint_workflow.RUN_PATTERN,
    part=r"\d+-\d+",
    figure="|".join(STUDY.figures),

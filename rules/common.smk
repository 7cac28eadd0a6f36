# Binds the configuration to the rules: selected runs, outdated files, digests of source files. `STUDY` is that binding.
from triplepoint import workflow as triplepoint_workflow, workflow_site


configfile: "config/config.yaml"


workflow_site.collect_garbage_rarely()
workflow_site.skip_hidden_job_lines(workflow)
STUDY = triplepoint_workflow.bind(
    config,
    workflow.basedir,
    workflow_site.figures_on_command_line(workflow.is_main_process),
    workflow_site.reports_on_command_line(workflow.is_main_process),
)
workflow_site.apply_site(workflow)
workflow_site.pass_interrupts_on()
if workflow.is_main_process:
    workflow_site.force_outdated(STUDY.outdated_files(), STUDY.outdated_rules)


wildcard_constraints:
    run=triplepoint_workflow.RUN_PATTERN,
    part=r"\d+-\d+",
    study=STUDY.study_pattern,
    figure=STUDY.figure_pattern,
    comparison=STUDY.config_pattern("whatif"),
    projection=STUDY.config_pattern("projection"),

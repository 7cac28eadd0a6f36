# Binds the configuration to the rules: runs, outdated results, and the source files that a stage depends on.
from triplepoint import workflow as triplepoint_workflow, workflow_site


configfile: "config/config.yaml"


workflow_site.collect_rarely()
workflow_site.look_at_functions_once()
workflow_site.write_whole_lines()
workflow_site.check_groups_once()
workflow_site.prepare_only_what_is_said(workflow)
STUDY = triplepoint_workflow.bind(
    config,
    workflow.basedir,
    workflow_site.asked_figures(workflow.is_main_process),
    workflow_site.asked_reports(workflow.is_main_process),
)
workflow_site.apply_site(workflow)
workflow_site.pass_interrupts_on()
workflow_site.wake_scheduler_rarely()
if workflow.is_main_process:
    workflow_site.make_again(STUDY.outdated(), STUDY.outdated_rules)


wildcard_constraints:
    run=triplepoint_workflow.RUN_PATTERN,
    part=r"\d+-\d+",
    study=STUDY.study_pattern,
    figure=STUDY.figure_pattern,
    comparison=STUDY.simulated_pattern_of("whatif"),
    projection=STUDY.simulated_pattern_of("projection"),

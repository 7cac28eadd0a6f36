# Writes `results/plan.json` and the `point.json` of every run before the first job, but not in a dry run. This is no rule:
# the name of a run contains the digest of its point, so no job depends on the age of these files. It fails if launches
# exceed the budget.
onstart:
    STUDY.check_budget(workflow_site.runs_to_launch(workflow))
    STUDY.write_plan()
    workflow_site.lift_job_rate_limit(workflow)
    workflow_site.start_fork_servers(workflow_site.families_to_serve(workflow))

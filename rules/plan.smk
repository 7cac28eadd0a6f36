# Writes `results/plan.json` and the `point.json` of every run, before the first job and not in a dry run. No rule: a run is
# called after the digest of its point, so no job depends on these files being new. Launches beyond the budget are refused.
onstart:
    STUDY.check_budget(workflow_site.runs_to_launch(workflow))
    STUDY.write_plan()
    workflow_site.lift_job_rate_limit(workflow)
    workflow_site.start_fork_servers(workflow_site.families_to_serve(workflow))

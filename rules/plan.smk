# Writes `results/plan.json` and the `point.json` of every run, before the first job and not in a dry run. No rule: a run is
# called after the digest of its point, so no job depends on these files being new.
onstart:
    STUDY.write_plan()

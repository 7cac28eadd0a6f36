"""The launch stage: submit one gang of ranks per run, watch it on each node, judge its outcome by evidence."""

"""Published tables of training runs: a row in anyone's words becomes a job, for `predict --published` and fitting."""

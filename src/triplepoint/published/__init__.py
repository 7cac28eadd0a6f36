"""Published tables of training runs: turns a row in free wording into a job, for `predict --published` and for fits."""

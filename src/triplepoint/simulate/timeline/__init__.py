"""Pipeline schedules and the event-driven timeline of a step."""
